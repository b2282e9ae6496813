"""Agent logs as decision points: readers of log formats, the rule of failure, the items that come of it."""
