"""The in-memory checkpoint tier: each node's cache and its server, their client, the store with the caches before it.
Imports `stores`, no torch (a cache server must stay small); `launch` starts it, `train` reads and writes through it.
"""
