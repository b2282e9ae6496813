"""Which heads a study takes, what replaces them, and the controls beside them."""
