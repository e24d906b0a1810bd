"""The click model under a plan of several types, beside all of it on one type, with real processes.
Run as `python -m benchmarks.placement_real`. May import benchmarks.common and the tests' workers and ledger."""
