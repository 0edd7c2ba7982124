"""Attacks on a gateway: each falls upon a naive gateway and upon dpsql, and is shown in one table by `make attack`.

An attacker is a function of `ask`, which takes SQL and returns rows or raises `Refused`; it does not know whom it asks.
"""
