"""Checks, benchmarks and calibration."""
