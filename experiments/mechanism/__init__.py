"""Studies that find and test the heads that do it."""
