"""Schedulers to compare with, and `fair_share`, to which a pool falls back when a policy fails: it needs no model.
May import `policy.base` and `predict`; the registry imports the policies, Gavel and `sim.testbed` shared parts.
"""
