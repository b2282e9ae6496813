"""The conditions in which a decision point is written, and their wording."""
