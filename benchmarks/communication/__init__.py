"""What an exchange of gradients costs on networks of a stated speed: `python -m benchmarks.communication`.
Real processes, each in a network namespace of its own, on links that the kernel and `delay_switch` slow down.
"""
