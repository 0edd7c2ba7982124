"""Bounds on processor time and memory, kept by the kernel and by counting bytes."""
