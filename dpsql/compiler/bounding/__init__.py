"""Contribution bounding: engine SQL in which each unit adds a bounded amount."""
