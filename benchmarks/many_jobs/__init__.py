"""Hundreds of jobs at once against the control plane's own app: page, decisions, and cancelling all of them.

May import everything; the product imports nothing of it.
"""
