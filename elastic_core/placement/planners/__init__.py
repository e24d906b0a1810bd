"""Planners of placements behind one interface (`planner`), by name in `planner_names`: the optimum and baselines.

May import the rest of `placement` but `learnt`, which only `planner_names` knows.
"""
