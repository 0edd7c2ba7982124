"""Lowering of relations: FROM, joins, subqueries, set operations, rows per unit, SELECT."""
