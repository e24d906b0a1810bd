"""Jobs over parameter servers: the sizes of those that the runtime runs, and of the simulator's own beside them.
May import `policy.base`, `baselines`, `horizon`, `task_memory`, `predict`; AITurbo and the benchmarks import it.
"""
