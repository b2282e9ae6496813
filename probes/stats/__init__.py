"""Intervals, tests, rankings and checks of frames; no model."""
