"""The code of a job, kept in the store beside its checkpoints: what its first segment ran, every later one runs."""
