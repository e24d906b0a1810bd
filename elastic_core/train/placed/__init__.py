"""Training under an allocation whose stages lie on slots of several types: each rank runs some layers of the model.
Imports parallel and data; used by gradients, checkpoint, steps and the session.
"""
