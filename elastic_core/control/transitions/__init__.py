"""What may happen to jobs, segments and leases, each as one transaction: submit, commit, hand over, end, reconcile.

Imports the ledger and the rules of grants; knows no policy and no HTTP. `control.plane` calls it.
"""
