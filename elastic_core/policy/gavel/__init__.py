"""Gavel (OSDI 2020): shares of time by a linear program, realised in rounds. A rival of the benchmarks.
May import `policy.base`, `baselines`, `task_memory` and `predict`; the registry imports the policy.
"""
