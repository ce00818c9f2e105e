"""Bad inputs of the bounds, the measures and the worst inputs: rows of `REFUSALS` in test_refusals.py."""

BOUNDS = []
