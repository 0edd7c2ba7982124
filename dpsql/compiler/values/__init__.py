"""Bounds of values, grids, and the public domain of group keys."""
