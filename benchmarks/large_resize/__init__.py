"""A transformer of a gibibyte of state that changes its layout while it lives, beside a restart and beside DCP.
Run as `python -m benchmarks.large_resize`. May import benchmarks.common and the tests' workers and ledger."""
