"""One form for all spellings of a release: the key under which its answer is reused."""
