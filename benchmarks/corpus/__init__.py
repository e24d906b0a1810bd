"""A corpus of short real trainings, whose ends nobody knew before: what forecasts can be fitted to and judged on.

`families` are tasks as a user writes them, `make` trains them. May import everything; the product
imports nothing of it.
"""
