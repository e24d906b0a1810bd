"""The embedded MLflow server as the platform starts it, over an installation that has something to steal."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import create_engine, text

from elastic_core.host.mlflow_access import ADMIN
from elastic_core.host.secret_files import write_secret
from elastic_core.services.platform import platform_stack, prepare_home, service_environment, service_settings
from elastic_core.services.secrets import admin_password
from elastic_core.settings import Settings
from tests.e2e.platform import PATIENCE, free_ports

CANARY = "canary-" + 12 * "7"


class MlflowProcess:
    """One home with secrets and DAGs, and its MLflow over a SQLite database that a test can reach into."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        (port,) = free_ports(1)
        self.dags = folder / "project" / "dags"
        self.dags.mkdir(parents=True)
        self.settings = service_settings(
            Settings(home=folder / "home", project=folder / "project", mlflow_port=port, **changes)
        )
        prepare_home(self.settings)
        self.database = f"sqlite:///{folder}/mlflow.db"
        write_secret(self.settings.secret_file("mlflow_db_url"), self.database)
        self.canary = self.settings.secret_file("canary")
        write_secret(self.canary, CANARY)
        self.artifacts = self.settings.home / "mlflow"
        self.log = folder / "log"
        (self.program,) = (one for one in platform_stack(self.settings, {}).programs() if one.name == "mlflow")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **around: str) -> None:
        """`around`: variables of the shell that `elastic up` is called in."""
        environment = service_environment(self.settings, {**os.environ, **around}) | self.program.environment
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.program.command, env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + 180 * PATIENCE
        assert self.program.health is not None
        while (problem := self.program.health(0.0)) is not None:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, problem
            time.sleep(0.2)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)

    def client(self, user: str | None = ADMIN, password: str | None = None) -> httpx.Client:
        """A script of the user `admin`; of nobody, if `user` is None."""
        login = None if user is None else (user, password or admin_password(self.settings))
        verify = str(self.settings.mlflow_ca) if self.settings.mlflow_ca else True
        return httpx.Client(base_url=self.settings.tracking_uri(), auth=login, timeout=60.0, verify=verify)

    def plant(self, statement: str, **values: Any) -> None:
        """Write into MLflow's database past the server, as a release before this one would have."""
        engine = create_engine(self.database)
        with engine.begin() as connection:
            connection.execute(text(statement), values)
        engine.dispose()


def create(client: httpx.Client, what: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/2.0/mlflow/{what}", json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made
