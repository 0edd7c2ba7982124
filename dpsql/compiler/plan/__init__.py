"""The pipeline from text to a plan: release boundaries, price, SQL of post-processing, `verify`."""
