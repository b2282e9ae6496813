"""Load-time checks: errors of a model or library that would silently give wrong results."""
