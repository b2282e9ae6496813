"""Activation patching, path patching, attribution and what takes the place of an ablated head's z."""
