"""Figures of a run folder: PNG, PDF and the csv behind each, drawn from csv tables and nothing else."""

from __future__ import annotations

from figures.load import FigureError
from figures.report import write_all

__all__ = ["FigureError", "write_all"]
