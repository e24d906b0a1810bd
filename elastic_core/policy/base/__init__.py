"""What policies share: the protocol and its laws, the queue, the pool as they count it, remaining work, the knapsack.
May import `domain` and `predict`, never a policy; every folder of `policy` may import it.
"""
