"""Decision points through the engine: which tokens are scored, patched and knocked out, and in which metrics."""
