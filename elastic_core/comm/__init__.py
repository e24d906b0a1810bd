"""Gradient exchange between the ranks of a job; one name an algorithm, chosen by the allocation.
Imports torch, domain and errors only; used by train, and through `attach` by whoever has a DDP model.
"""

from elastic_core.comm.plain_ddp import attach as attach
