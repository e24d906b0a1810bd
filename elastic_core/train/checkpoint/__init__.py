"""Saving a rank's state to the ledger's commit (`pipeline`), and restoring it from a checkpoint of any layout.
Imports state, comm, train.lease, train.parallel, train.data and train.gradients; used by train.steps and the session.
"""
