"""Planners of placements behind one interface (`planner`): the optimum, and baselines.
May import the rest of `placement` but `learnt` and `planner_names`, which know them.
"""
