"""Which version of a registered model is the champion, and which were before.
May import httpx and the protocol; neither MLflow nor airflow: Airflow's API server loads it."""
