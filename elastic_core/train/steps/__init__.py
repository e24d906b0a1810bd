"""The loop around the optimizer's steps: agreeing on each, counting, observing, and going from segment to segment.
Imports the other packages of train but process; used by the session.
"""
