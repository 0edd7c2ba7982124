"""What a user may name, and what lowering carries along."""
