"""What the platform costs a training, beside the bare loop.

May import everything; the product imports nothing of it.
"""
