"""Rank 0's side of the lease: heartbeat, observations, stop requests, and workers that stand by for a growth.
Imports protocol and host, and no torch; used by the worker process, by checkpoints and by the segment loop.
"""
