"""Checkpoint format version 1: manifest, writing and reading shards, optimizer and random state, DCP over it.
Imports `layout` and `stores`, no process group, no ledger; `reshard`, `train`, `track`, `view`, `commands` import it.
"""
