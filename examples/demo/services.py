"""The platform's services for the time of the demo, and the clients that it uses: what any user has, nothing more."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from elastic_core.host.mlflow_access import ADMIN
from elastic_core.protocol.http_client import HttpControl
from elastic_core.services import stack as services
from elastic_core.services.platform import (
    platform_stack,
    prepare_home,
    push_cluster,
    service_environment,
    service_settings,
)
from elastic_core.services.secrets import admin_password, read_secret
from elastic_core.settings import Settings

# Unless the user's settings say otherwise.
OURS: Mapping[str, Any] = {"cluster": Path(__file__).with_name("cluster.json")}
START_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Platform:
    settings: Settings
    control: HttpControl
    airflow: httpx.Client

    def start_job(self, job_id: str, spec: Mapping[str, Any]) -> None:
        """What the trigger form does: start a run of `elastic_job`, here with the whole spec at once."""
        body = {"dag_run_id": job_id, "logical_date": None, "conf": {"spec": spec, "job_id": job_id}}
        self.airflow.post("/dags/elastic_job/dagRuns", json=body).raise_for_status()

    def run_state(self, job_id: str) -> str:
        answer = self.airflow.get(f"/dags/elastic_job/dagRuns/{job_id}").raise_for_status()
        return str(answer.json()["state"])


@contextmanager
def platform(console: Console, keep: bool, running: bool = False) -> Iterator[Platform]:
    given = Settings()
    unset = {key: value for key, value in OURS.items() if key not in given.model_fields_set}
    settings = service_settings(given.model_copy(update=unset))
    environment = service_environment(settings, os.environ)
    stack = platform_stack(settings, environment)
    ours = not running and not (settings.home.exists() and all(service.healthy for service in services.status(stack)))
    if ours:
        prepare_home(settings)
        with console.status("starting PostgreSQL, Airflow, MLflow and the tracker"):
            services.up(
                stack, settings.host, environment, wait_seconds=START_SECONDS, tell=lambda line: console.log(line)
            )
    else:
        console.print(f"using the services that run, at {settings.airflow_page()}")
    try:
        push_cluster(settings)
        with (
            httpx.Client(base_url=f"{settings.airflow_url()}/api/v2", headers=_login(settings), timeout=30) as airflow,
            _control(settings) as control,
        ):
            yield Platform(settings, control, airflow)
    finally:
        if ours and not keep:
            with console.status("stopping the services"):
                services.down(stack, tell=lambda line: console.log(line))


@contextmanager
def _control(settings: Settings) -> Iterator[HttpControl]:
    control = HttpControl(settings.api_url(), read_secret(settings, "control").encode())
    yield control
    control.close()


def _login(settings: Settings) -> dict[str, str]:
    login = {"username": ADMIN, "password": admin_password(settings)}
    answer = httpx.post(f"{settings.airflow_url()}/auth/token", json=login, timeout=30).raise_for_status()
    return {"authorization": f"Bearer {answer.json()['access_token']}"}
