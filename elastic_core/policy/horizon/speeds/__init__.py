"""How fast the jobs of a task are, for `horizon`: the fitted step time put right by what was measured, on types that a
task never ran on too, and under the gradient noise that is still to come.
"""
