"""Exchanges of weights: every rank's optimizer steps with the rank's own gradients, and weights are averaged.
Imports torch, the exchanges of gradients and errors only; one name an algorithm, as those.
"""
