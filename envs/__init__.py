"""Environments: simulated worlds whose failures are known exactly; no model, no clock."""
