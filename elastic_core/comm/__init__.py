"""Gradient exchange between the ranks of a job; one name an algorithm, chosen by the allocation.
Imports torch and errors only; used by train.
"""
