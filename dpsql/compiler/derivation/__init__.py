"""Answers from released cells: what a release that is there already says of another one."""
