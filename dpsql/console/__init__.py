"""The data owner's console: one page over HTTP with the state of the ledger, the policy and the gateway's counters.

Rule 1: the console reads no private row, and writes nothing to the ledger.
Rule 2: before the owner's password is given, only the login form is served.
"""
