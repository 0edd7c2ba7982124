"""The closed intermediate form: nodes, walks over it, the allow-list of functions, facts of the schema."""
