"""Which layers of a model run on which type of resource: the cheapest way to train it above a floor of throughput.

`problem` and `stage_costs` are what is asked and what an answer costs; `planners` answer. Pure, as policies are; torch
comes in where layers are measured (`measured_layers`) and in `learnt`, nowhere else. May import `domain` and below.
"""
