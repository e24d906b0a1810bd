"""Policies for AITurbo's testbed, whose jobs only the simulator has: workers share GPUs, servers have several cores.
May import policy and predict; the benchmarks import it.
"""
