"""Resharding: who gets which piece from where (`change_plan`), doing it between processes, collective checkpoint loads.
Imports `layout`, `format`, `stores`, `memory_tier.channel`; imported by `train.checkpoint`, `commands`, benchmarks.
"""
