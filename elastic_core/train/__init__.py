"""Training a job's segments on the slots of a lease: what users derive from (task, session, entry, ...) and the worker.
Imports protocol, host, state, comm and spec; the launcher starts `train.process.worker`, nobody else drives training.
"""
