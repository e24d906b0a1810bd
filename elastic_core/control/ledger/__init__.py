"""The ledger in PostgreSQL: tables, transactions, leases, and everything that is read from them.

Nothing else of the control plane is imported here; all of it may import this.
"""
