"""BFTrainer (2021): an integer program over counts of slots, resizes weighed by what they lose. A rival of the
benchmarks. May import `policy.base` and `predict`; the registry imports the policy.
"""
