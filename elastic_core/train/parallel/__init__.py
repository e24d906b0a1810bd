"""The ranks of a process group, each one's place in the layout, and partitioning a model for that place.
Imports host, comm, state (layout, the channel) and train.layouts; used by all the rest of train.
"""
