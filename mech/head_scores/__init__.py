"""Scores of heads, sets chosen by them, and the control sets beside a chosen one."""
