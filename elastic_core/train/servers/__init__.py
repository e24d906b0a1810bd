"""Training with parameter servers: workers compute gradients of the whole model, servers keep and step its parameters.
Imports parallel, placed and data; used by gradients, checkpoint, steps and the session.
"""
