"""What may be changed in a run: edits of activations, cut attention edges, and the hooks that make them."""
