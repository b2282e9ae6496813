"""Decision points through the engine: which tokens are scored, patched and cut, and in which metrics."""
