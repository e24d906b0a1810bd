"""The control plane: the ledger, the allocator around every decision, and the API in front of both.

Airflow's API server, the tracker, the CLI and `elastic up` import it; no trainer, agent or launcher does.
"""
