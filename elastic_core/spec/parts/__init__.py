"""The parts of a job spec that have fields of their own: slots, work and segments, exchange, parameter servers.

They import what a spec may, and not the spec as a whole.
"""
