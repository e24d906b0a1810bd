"""The API server of these tests: started, asked, and looked at from outside."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from elastic_core.services.secrets import ensure_secrets
from elastic_core.settings import Settings
from tests.security.odd_specs.server_process import ROOT, TOKEN

READY_SECONDS = 60.0
MODULE = "tests.security.odd_specs.server_process"


@dataclass(frozen=True, slots=True)
class ApiServer:
    settings: Settings
    url: str  # of the plugin's app
    token: str
    pid: int
    log: Path

    def cpu_seconds(self) -> float:
        """Of all of its threads since it began, to the nanosecond: clock_getcpuclockid(3) of Linux."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def forget_peak(self) -> int:
        """Bytes of memory in use; from here on `peak_bytes` counts anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self._status("VmRSS")

    def peak_bytes(self) -> int:
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


@contextmanager
def api_server(home: Path, ledger_url: str, airflow_url: str) -> Iterator[ApiServer]:
    settings = Settings(home=home, project=ROOT, ledger_url=ledger_url, mlflow_uri="none")
    ensure_secrets(settings)
    log = home / "api-server.log"
    listener = socket.create_server(("127.0.0.1", 0))
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(listener.fileno())], pass_fds=[listener.fileno()], cwd=ROOT,
            env=_environment(settings, airflow_url), stdout=subprocess.PIPE, stderr=written, text=True,
        )  # fmt: skip
    port = listener.getsockname()[1]
    listener.close()
    try:
        assert process.stdout is not None
        lines = (line for line in process.stdout if line.startswith(TOKEN))  # Airflow prints warnings there
        token = next(lines, "").removeprefix(TOKEN).strip()
        assert token, log.read_text()[-4000:]
        server = ApiServer(settings, f"http://127.0.0.1:{port}/elastic", token, process.pid, log)
        _wait_until_ready(server)
        yield server
    finally:
        process.kill()
        process.wait()


def _environment(settings: Settings, airflow_url: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTIC_", "AIRFLOW"))}
    return inherited | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}",
        "AIRFLOW_HOME": str(settings.home / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:user",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(settings.home / "passwords.json"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": airflow_url,
        "AIRFLOW__API_AUTH__JWT_SECRET": "of-an-api-server-that-lives-as-long-as-a-test",
        "AIRFLOW__LOGGING__NAMESPACE_LEVELS": "http.access=WARNING",
        "ELASTIC_HOME": str(settings.home),
        "ELASTIC_PROJECT": str(ROOT),
        "ELASTIC_LEDGER_URL": settings.ledger_url,
        "ELASTIC_MLFLOW_URI": "none",
        "ELASTIC_TASKS": "examples.*",
    }


def _wait_until_ready(server: ApiServer) -> None:
    deadline = time.monotonic() + READY_SECONDS
    headers = {"authorization": f"Bearer {server.token}"}
    while (answer := httpx.get(f"{server.url}/api/v1/cluster", headers=headers, timeout=60)).status_code != 200:
        assert time.monotonic() < deadline, answer.text + server.log.read_text()[-4000:]
        time.sleep(0.2)
