"""Gradient exchange between the ranks of a job; one name an algorithm, chosen by the allocation."""
