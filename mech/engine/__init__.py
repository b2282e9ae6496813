"""Scores and activations of token sequences: packed over shared prefixes, and by full forwards as the reference."""
