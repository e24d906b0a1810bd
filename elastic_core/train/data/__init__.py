"""Which samples a rank reads at which step, reading them, and proving that each was read exactly once.
Imports state only; used by the session, by checkpoints, and (audit, data_state) by whoever reads a job's history.
"""
