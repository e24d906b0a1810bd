"""What jobs can hold, unit by unit: slots of one type, or workers and parameter servers with a slot each.
May import `policy.base` and `predict`; AITurbo and the simulator's testbed import it.
"""
