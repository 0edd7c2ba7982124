"""The data owner's view: one page over HTTP of what the ledger, the policy and the gateway's counters say.

Rule 1: nothing here reads a private row, and nothing here writes to the ledger.
Rule 2: before the owner's password is given, there is nothing but the form that asks for it.
"""
