"""What may be changed in a run: edits of activations, attention knockouts, and the hooks that make them."""
