"""Queries in the cells of a notebook: `%load_ext dpsql`."""
