"""Step times fitted to measurements, what a sample is worth at a batch, and both together: goodput.
May import `domain` only; `throughput` holds the model, `goodput` the search of a batch, `fit` the remembered calls.
"""
