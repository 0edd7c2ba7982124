"""pg_catalog and information_schema, made from the policy only and queried with PostgreSQL's semantics.

A query goes through `catalog` (does it query the catalog?), `reading` (its checked syntax tree), `queries` with the
classes below it (the translation into DuckDB's SQL, with types) and `engine`, which runs it. `kinds`, `relations` and
`functions` read tables of facts, `objects` makes the rows of a policy, and `snapshot` has all rows that a role sees.
"""
