"""The learnt planners: a policy over layers, trained by REINFORCE over a family of problems or on one, on costs that
it is told; `families.safetensors` is one, made by `elastic placement train`. Loads torch; imported when asked for.
"""
