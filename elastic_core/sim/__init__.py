"""The simulator: the product's own policies and predictors on workloads that do not run, and what came of them.
May import policy, predict, protocol and domain; only `elastic simulate`, the what-if and benchmarks import it."""
