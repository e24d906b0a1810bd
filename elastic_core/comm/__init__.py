"""Exchange of gradients, or of weights, between the ranks of a job; one name an algorithm, chosen by the allocation.
Imports torch, domain and errors only; used by train.
"""
