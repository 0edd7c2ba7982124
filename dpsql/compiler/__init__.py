"""SQL text and policy in, a wholly planned query out: no I/O and no randomness."""
