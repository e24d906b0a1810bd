"""What measurements say about jobs: step times, work still to come, and whether progress can be predicted at all.
May import `domain` and `errors`; policies, the control plane and the simulator import it.
"""
