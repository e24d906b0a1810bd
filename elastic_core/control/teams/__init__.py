"""Who may do what: the one rule for queues and jobs, quotas of active jobs, and the record of every action.

Knows the ledger and nothing above it; transitions ask the quotas, the control plane asks the rest.
"""
