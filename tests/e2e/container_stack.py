"""The stack of docker/compose.yaml on a real engine, and ways to hurt it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.platform import PATIENCE, free_ports

ROOT = Path(__file__).parents[2]
ENGINE = shlex.split(os.environ.get("CONTAINER_ENGINE", "docker"))
COMPOSE = shlex.split(os.environ.get("COMPOSE", "docker compose"))
BUILD_FLAGS = shlex.split(os.environ.get("CONTAINER_BUILD_FLAGS", ""))


def why_no_engine() -> str | None:
    """None where engine and Compose answer."""
    for command in ([*ENGINE, "info"], [*COMPOSE, "version"]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"no engine: {error}"
        if done.returncode:
            return f"no engine: {shlex.join(command)} gave {done.returncode}: {done.stderr.strip()[-200:]}"
    return None


def built_image() -> str:
    """The image to test, with Ray for the nodes: the one that is named, else built from this tree."""
    if image := os.environ.get("CONTAINER_IMAGE"):
        return image
    image = "localhost/elastic-airflow:test"
    command = [*ENGINE, "build", *BUILD_FLAGS, "--build-arg", "RAY=yes", "-f", "docker/Dockerfile", "-t", image, "."]
    subprocess.run(command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
    return image


@dataclass(frozen=True)
class ContainerStack:
    """One size of the stack under a name of its own. `trains`: the service whose container has the workers."""

    size: str
    trains: str
    image: str
    ports: tuple[int, int]

    @staticmethod
    def of(size: str, trains: str, image: str) -> ContainerStack:
        airflow, mlflow = free_ports(2)
        return ContainerStack(size, trains, image, (airflow, mlflow))

    @property
    def project(self) -> str:
        return f"elastic-test-{self.size}"

    def compose(self, *words: str, check: bool = True, seconds: float = 600) -> subprocess.CompletedProcess[str]:
        files = ["--env-file", f"docker/{self.size}.env", "-f", "docker/compose.yaml", "-p", self.project]
        environment = {
            **os.environ, "PLATFORM_IMAGE": self.image, "AIRFLOW_PORT": str(self.ports[0]),
            "MLFLOW_PORT": str(self.ports[1]),
        }  # fmt: skip
        return _run([*COMPOSE, *files, *words], check, seconds, environment)

    def engine(self, *words: str, check: bool = True, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        return _run([*ENGINE, *words], check, seconds)

    def container(self, service: str) -> str:
        return self.compose("ps", "-a", "-q", service).stdout.strip()

    def inside(self, service: str, *words: str, seconds: float = 120) -> str:
        """What a command in a service's container prints."""
        return self.engine("exec", self.container(service), *words, seconds=seconds).stdout

    def up(self) -> None:
        self.compose("up", "-d", "--no-build", seconds=600 * PATIENCE)

    def down(self) -> None:
        self.compose("down", "-v", "-t", "90", check=False, seconds=600 * PATIENCE)

    def services(self) -> list[str]:
        return self.compose("config", "--services").stdout.split()

    def ailing(self) -> dict[str, str]:
        """Services whose own health check says no, and why. Asked for here: not every engine asks by itself."""
        found = {}
        for service in self.services():
            if service != "prepare":
                done = self.engine("exec", self.container(service), *self._check(service), check=False)
                if done.returncode:
                    found[service] = (done.stdout + done.stderr).strip()[-300:]
        return found

    def _check(self, service: str) -> Sequence[str]:
        """The command of its health check, as the engine has it."""
        facts = self.engine("inspect", "--format", "{{json .Config.Healthcheck}}", self.container(service)).stdout
        kind, *words = json.loads(facts)["Test"]
        return words if kind == "CMD" else ("sh", "-c", *words)

    def wait_healthy(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds * PATIENCE
        while ailing := self.ailing():
            assert time.monotonic() < deadline, f"not healthy after {seconds * PATIENCE:g} s: {ailing}\n{self.tails()}"
            time.sleep(5.0)

    def elastic(self, *words: str) -> Any:
        """What `elastic ... --json` says in a container of the services."""
        return json.loads(self.inside("scheduler", "elastic", *words, "--json"))

    def submit(self, job_id: str, spec: dict[str, Any]) -> None:
        text = json.dumps(spec)
        write = "import sys; open('/tmp/spec.json', 'w').write(sys.argv[1])"
        self.inside("scheduler", "python", "-c", write, text)
        self.inside("scheduler", "elastic", "jobs", "submit", "/tmp/spec.json", "--id", job_id)

    def kill(self, service: str) -> None:
        """Its container and all processes in it, at once; then started again, as an engine's restart does."""
        container = self.container(service)
        self.engine("kill", container)
        self.engine("start", container)

    def tails(self) -> str:
        return self.compose("logs", "--tail", "40", "--no-color", check=False).stdout


def _run(
    command: Sequence[str], check: bool, seconds: float, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
    )
    if check and done.returncode:
        raise AssertionError(
            f"{shlex.join(command)} gave {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done
