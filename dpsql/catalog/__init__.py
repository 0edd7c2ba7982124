"""pg_catalog and information_schema, made from the policy alone and answered with PostgreSQL's semantics.

A query goes through `catalog` (is it the catalog's?), `reading` (the parser's tree, checked), `queries` with the
classes below it (the translation into DuckDB's SQL, with types) and `engine`, which runs it. `kinds`, `relations` and
`functions` read tables of facts, `objects` makes the rows of a policy, and `snapshot` has all rows that a role sees.
"""
