"""Planners of placements beside the optimum: cost, bound and time, by models and numbers of types.
May import elastic_core; no benchmark."""
