"""Data order: a function of (seed, epoch, position) alone, by samples (version 1) or by blocks of samples (version 2).
Imports NumPy and `elastic_core.errors` only; imported by `train.data` and by whoever checks a checkpoint's cursor.
"""
