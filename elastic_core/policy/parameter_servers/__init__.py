"""Jobs over parameter servers, in the simulator only: their sizes, and the policies that can place them.
May import `policy.base`, `baselines`, `horizon`, `task_memory`, `predict`; AITurbo and the benchmarks import it.
"""
