"""The pool that a Ray cluster is: which nodes it has, which of them leave, and what runs there that is nobody's.
Imports `launch.on_ray`; imported by the services that bring the ledger's pool up to what Ray says.
"""
