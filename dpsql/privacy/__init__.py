"""Sensitivity, mechanisms, selection, accounting, cost, sampling: the privacy arithmetic. It knows no SQL."""
