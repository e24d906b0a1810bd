"""The control plane over HTTP, and the what-if question, which alone may import the simulator.

Imports `control.plane`; only Airflow's plugin imports this.
"""
