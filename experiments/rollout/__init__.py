"""Studies of a running agent."""
