"""Checkpoint stores: the contract, a folder and an S3 bucket that keep it, keys and paths, removing what is not needed.
Imports `state.buffers` and `protocol.records`, no torch; whatever reads or writes checkpoints or data may import it.
"""
