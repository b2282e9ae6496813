"""Writing a turn token by token, under an intervention that persists."""
