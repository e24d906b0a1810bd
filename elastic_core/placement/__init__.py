"""Which layers of a model run on which type of resource: heterogeneous placement. Nothing lives here yet.

May import `domain` and what lies below; pure, as policies are.
"""
