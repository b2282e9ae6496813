"""Studies and the command line: the only room that reads the clock, the environment and the disk layout."""
