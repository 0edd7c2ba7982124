"""What runs a query: compile, charge, fetch, release; sessions, settings, cursors, and EXPLAIN."""
