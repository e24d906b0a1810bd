"""The control plane over HTTP, and the process for what-if questions, which alone may import the simulator.

Imports `control.plane`; only Airflow's plugin imports this.
"""
