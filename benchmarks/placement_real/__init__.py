"""The click model under a plan of several types, beside all of it on one type, by jobs on the real services.
Run as `python -m benchmarks.placement_real`. May import benchmarks.common and the platform of the e2e tests."""
