"""How simulated jobs really behave: step times, gradient noise, work; and oracles that hand the truth to a policy.
May import domain, policy.base, policy.plans and predict.speed; no workload, no trace, no engine."""
