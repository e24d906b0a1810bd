"""The learnt planner: a policy over layers, trained by REINFORCE on costs that it is told, and shown no form of.
Loads torch; `planner_names` imports it when it is asked for.
"""
