"""Exchanges that take the place of an optimizer's update: momenta are averaged, and not gradients.
Imports torch, errors and the rest of comm; used by `comm.algorithms`.
"""
