"""Checkpoints, tokenizers and chat templates: from what a user names to a model in memory."""
