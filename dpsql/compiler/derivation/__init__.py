"""Answers from released cells: derives one release from another."""
