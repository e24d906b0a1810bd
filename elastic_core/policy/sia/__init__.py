"""Sia (SOSP 2023): one integer program over types and counts, and its placement. A rival of the benchmarks.
May import `policy.base`, `task_memory` and `predict`; the registry imports the policy.
"""
