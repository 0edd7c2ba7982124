"""Lowering of expressions: one family of expressions a file."""
