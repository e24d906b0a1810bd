"""What is done to a plan whoever made it: slots and layouts chosen, the plan checked, grants given in turn.
May import `domain` and `predict`; policies, the allocator and the simulator import it.
"""
