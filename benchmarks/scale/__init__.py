"""The control plane with a thousand running jobs on ten thousand slots. Imports the control plane, its HTTP clients and
benchmarks.common.
"""
