"""Broken variants of the platform's own code, each of which the simulated faults or a named test must catch.
Run as `python -m benchmarks.mutants`. May import benchmarks.common; what it breaks is a copy of the tree."""
