"""What stages of a pipeline send each other, in fewer bytes: activations forward, their gradients back.
Imports torch, the probe of links and errors only; where stages meet is train's to know.
"""
