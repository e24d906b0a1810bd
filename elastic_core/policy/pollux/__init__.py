"""Pollux (OSDI 2021): a genetic search over slots by node. A rival that the benchmarks compare with.
May import `policy.base` and `predict`; the registry imports the policy.
"""
