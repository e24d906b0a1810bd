"""Jobs over parameter servers: the sizes of those that the runtime runs, and of the simulator's own beside them.
May import `policy.base` and `predict`; AITurbo and the simulator's testbed import it.
"""
