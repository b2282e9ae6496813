"""Studies that measure how much a failed call makes itself likelier."""
