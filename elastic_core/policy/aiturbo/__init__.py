"""AITurbo (HPDC 2021): feedback queues and a Borda count say who is served, marginal gains say how much.
May import `policy.base`, `task_memory`, `parameter_servers` and `predict`; the registry imports the policy.
"""
