"""MLflow's client, logged in where the server is the embedded one."""

from __future__ import annotations

import os

from mlflow import MlflowClient

from elastic_core.host import mlflow_access
from elastic_core.settings import Settings


def open_client(settings: Settings) -> MlflowClient:
    """For the tracking server that the settings name. Raises `UserError` where its password cannot be read."""
    log_in(settings)
    uri = settings.tracking_uri()
    return MlflowClient(uri, registry_uri=uri)


def log_in(settings: Settings) -> None:
    """From now on MLflow's client in this process asks the embedded server as the platform's own user.

    By the environment, the only way that MLflow's artifact client knows. Where the server is the user's own, what the
    environment says already is left as it is.
    """
    if settings.mlflow_uri:
        return
    for name in ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_INSECURE_TLS"):
        os.environ.pop(name, None)
    os.environ["MLFLOW_TRACKING_USERNAME"] = mlflow_access.SERVICE_USER
    os.environ["MLFLOW_TRACKING_PASSWORD"] = mlflow_access.service_password(settings)
    if settings.mlflow_ca is not None:
        os.environ["MLFLOW_TRACKING_SERVER_CERT_PATH"] = str(settings.mlflow_ca)
