"""Profiles measured on this machine, of real torch modules. The other part of `placement` that loads torch.
May import the rest of `placement`.
"""
