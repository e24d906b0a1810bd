"""Tests with `mlflow_server` (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mlflow import MlflowClient

from tests.track.mlflow_server import MlflowServer


@pytest.fixture(scope="session", autouse=True)
def one_request_each() -> Iterator[None]:
    """As the service does: what was not answered is looked up, not sent again below us."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        yield


@pytest.fixture
def client(mlflow_server: MlflowServer) -> MlflowClient:
    return MlflowClient(mlflow_server.uri, registry_uri=mlflow_server.uri)
