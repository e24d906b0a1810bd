"""From losses to one gradient of the global batch: backward, exchange, norms, noise scale and learning rates.
Imports comm, spec, state.layout, train.data and train.parallel; used by the session and the steps.
"""
