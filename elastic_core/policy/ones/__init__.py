"""ONES (SC 2021): an evolutionary search over schedules that give every slot a job with a local batch. A rival of the
benchmarks. May import `policy.base` and `predict`; the registry imports the policy.
"""
