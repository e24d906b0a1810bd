"""From a snapshot of the ledger to a plan in force: predictors, the policy (maybe in its own process), the allocator.

Imports the ledger, policies and predictors; only `control.plane` and Airflow's reconcile task import it.
"""
