"""Which version of a registered model is the champion, and which were before.
May import MLflow's client; airflow not."""
