"""Load-time checks: what a wrong stack would silently fabricate is measured before any result is."""
