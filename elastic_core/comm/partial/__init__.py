"""Exchanges of gradients that each rank has computed of a part of the model only.
Imports torch, the exchanges of gradients and errors only; a class of its own, which a job must allow.
"""
