"""Programs that run in virtual environments of their own, with what a peer needs; they import nothing of dpsql."""
