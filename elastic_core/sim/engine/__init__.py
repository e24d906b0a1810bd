"""The simulated world in time: events, jobs as they run, results.

Imports policies, the rules of grants and `sim.ground_truth`; the rest of the simulator may import this.
"""
