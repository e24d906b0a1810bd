"""The whole platform on this machine, for tests that need all of it: its clients, and ways to hurt it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from elastic_core.host.mlflow_access import ADMIN
from elastic_core.protocol.http_client import HttpControl
from elastic_core.protocol.process_groups import ExitReport
from elastic_core.protocol.records import JobFacts
from elastic_core.services.platform import settings_environment
from elastic_core.services.secrets import admin_password, read_secret
from elastic_core.services.supervision.marks import of_home
from elastic_core.services.supervision.supervise import Supervisor
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec
from elastic_core.text import tail

ROOT = Path(__file__).parents[2]
PATIENCE = float(os.environ.get("E2E_PATIENCE", "1"))  # times as long on a machine that has other things to do
START_SECONDS = round(300 * PATIENCE)
CLUSTER = {"nodes": [{"name": name, "type": "cpu", "slots": 2} for name in ("node-a", "node-b")]}


class Platform:
    """One home with its services. `settings` has their addresses; everything is torn down by `destroy`."""

    def __init__(self, home: Path, **changes: Any) -> None:
        """`changes`: settings other than the defaults; the policy is the default one, as users have it."""
        cluster = home / "cluster.json"
        cluster.write_text(json.dumps(CLUSTER))
        airflow_port, mlflow_port = free_ports(2)
        self.settings = Settings(
            home=home, cluster=cluster, airflow_port=airflow_port, mlflow_port=mlflow_port,
            **{"project": ROOT, "tasks": "examples.*,tests.*", **changes},
        )  # fmt: skip
        self.home = home
        self.supervisor = Supervisor(home)

    def elastic(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the command `elastic` on this platform."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ELASTIC_")}
        done = subprocess.run(
            [sys.executable, "-c", "from elastic_core.cli import app; app()", *arguments],
            env=inherited | settings_environment(self.settings), cwd=ROOT, capture_output=True, text=True,
            timeout=START_SECONDS + 100,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(
                f"elastic {arguments} gave {done.returncode}:\n{done.stdout}{done.stderr}\n{self.tails()}"
            )
        return done

    def up(self) -> str:
        return self.elastic("up", "--timeout", str(START_SECONDS)).stdout

    def down(self) -> str:
        return self.elastic("down").stdout

    @cached_property
    def control(self) -> HttpControl:
        """`ServiceControl` over HTTP; waits out an API server that restarts."""
        secret = read_secret(self.settings, "control").encode()
        return HttpControl(self.settings.api_url(), secret, patience_seconds=120.0)

    @cached_property
    def airflow(self) -> httpx.Client:
        """Airflow's REST API as its administrator: `airflow.get("/dags")`. Errors are answers, not raised."""
        return httpx.Client(
            base_url=f"{self.settings.airflow_url()}/api/v2", headers={"authorization": f"Bearer {self.token()}"},
            timeout=30.0, transport=httpx.HTTPTransport(retries=5),
        )  # fmt: skip

    def token(self) -> str:
        login = {"username": ADMIN, "password": admin_password(self.settings)}
        answer = httpx.post(f"{self.settings.airflow_url()}/auth/token", json=login, timeout=30.0)
        return str(answer.raise_for_status().json()["access_token"])

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None, run_id: str | None = None) -> str:
        """Start a run by hand; its run id."""
        body = {"logical_date": None, "conf": conf or {}} | ({"dag_run_id": run_id} if run_id else {})
        answer = self.airflow.post(f"/dags/{dag_id}/dagRuns", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self.airflow.get(f"/dags/{dag_id}/dagRuns/{run_id}").raise_for_status().json()["state"])

    def pid(self, name: str) -> int:
        return self.supervisor.states()[name].pid

    def kill(self, name: str, signum: int = signal.SIGKILL) -> int:
        """Signal a service's main process (`elastic status` names them); its pid."""
        pid = self.pid(name)
        os.kill(pid, signum)
        return pid

    def status(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self.elastic("status", "--json", check=False).stdout)
        return {service["name"]: service for service in found}

    def healthy(self) -> bool:
        return not self.ailing()

    def ailing(self) -> dict[str, str]:
        """What is not healthy, and why."""
        return {name: service["detail"] for name, service in self.status().items() if not service["healthy"]}

    def wait_healthy(self, seconds: float, when: str) -> None:
        deadline = time.monotonic() + PATIENCE * seconds
        while ailing := self.ailing():
            assert time.monotonic() < deadline, f"not healthy {PATIENCE * seconds:g} s {when}: {ailing}"
            time.sleep(0.3)

    def processes(self) -> list[int]:
        return [process.pid for process in of_home(self.home)]

    def hold_slots(self, job_id: str, spec: JobSpec) -> None:
        """Take slots for a job that has no processes, from others where it must; returns when it has them."""
        segment = f"{job_id}__seg_0"
        self.control.submit(job_id, spec, JobFacts(dataset_samples=1000))
        self.control.acquire(segment)
        eventually(lambda: self.control.segment(segment).lease_live, 120, f"{job_id} gets its slots")

    def give_back_slots(self, job_id: str) -> None:
        """Those that such a job holds."""
        origin = self.control.segment(f"{job_id}__seg_0").epoch
        self.control.cancel(job_id, "it has held its slots for long enough")
        assert origin is not None
        self.control.process_group_gone(origin, ExitReport(kind="stopped"))

    def tails(self, lines: int = 15) -> str:
        """The end of every service's log."""
        logs = sorted((self.home / "logs").glob("*.log"))
        return "\n".join(f"--- {path.name}\n{tail(path, lines)}" for path in logs)


@contextmanager
def running(platform: Platform) -> Iterator[Platform]:
    """Its services, up and healthy. Afterwards its home is gone and no process of it is left."""
    try:
        platform.up()
        yield platform
    finally:
        platform.elastic("down", check=False)
        left = platform.processes()
        shutil.rmtree(platform.home, ignore_errors=bool(left))
    assert left == []


def project_with_dags(folder: Path, dags: Path) -> Path:
    """A project folder that is this one with a user's DAGs beside the platform's own."""
    (folder / "dags").mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.name not in ("dags", ".git", ".venv"):
            (folder / path.name).symlink_to(path)
    for path in [*(ROOT / "dags").glob("*.py"), *dags.glob("*.py")]:
        (folder / "dags" / path.name).symlink_to(path)
    return folder


def eventually(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """The condition's first value that is true. Connection errors count as false: something may just restart."""
    seconds *= PATIENCE
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            value = condition()
        except (httpx.TransportError, httpx.HTTPStatusError):
            value = None
        if value:
            return value
        time.sleep(0.3)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def free_ports(count: int) -> list[int]:
    """Different ports that were free just now."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
