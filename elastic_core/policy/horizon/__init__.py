"""Horizon, ours: types, counts and batches of all jobs at once, each valued by the delay that it takes off all.
May import `policy.base`, `plans`, `rules`, `task_memory`, `predict`; `policy.parameter_servers` imports parts.
"""
