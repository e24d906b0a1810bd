"""Which layers of a model run on which type of resource: the cheapest way to train it above a floor of throughput.

`placement_problem` and `stage_costs` are what is asked and what an answer costs; `planners` answer. Pure, as policies
are; torch comes in with `learnt` and `measured` alone. May import `spec`, `domain` and below.
"""
