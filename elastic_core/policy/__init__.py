"""Policies: `decide(snapshot, rng) -> plan`, pure and replayable, one folder a family; `registry` knows them by name.
May import `domain`, `text`, `errors`, `predict`: no clock, no I/O. The control plane and the simulator import it.
"""
