"""Decision points: what they are, and where they come from."""
