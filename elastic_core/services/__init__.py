"""The platform's own services on one machine: PostgreSQL, Airflow, MLflow and tracker, started, watched and stopped.

Imports host, launch, state's cache servers, and the ledger's migrations; only commands and the demo import it.
"""
