"""The REST API for users from a program: what it answers beside the contract's records, and a client with types.

Needs a login of Airflow and no secret of the platform. Nothing of the control plane is known here.
"""
