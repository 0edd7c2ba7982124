"""pg_catalog and information_schema, made from the policy alone and answered with PostgreSQL's semantics."""
