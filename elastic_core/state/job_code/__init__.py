"""The code of a job, kept in the store beside its checkpoints: what its first segment ran, every later one runs.
Imports `state.stores`, `protocol` and no torch; imported by launchers and by whoever runs a job's task elsewhere.
"""
