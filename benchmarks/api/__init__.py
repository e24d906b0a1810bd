"""How long the REST API and the page's routes take to answer over a large ledger. Imports the control plane, its HTTP
clients and benchmarks.common.
"""
