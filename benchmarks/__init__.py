"""Measurements with bars, a module each (`python -m benchmarks.NAME [--quick]`): exit code 1 where a bar does not hold.
May import everything; only tests of what they count import them."""
