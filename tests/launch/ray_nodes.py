"""A real Ray cluster on this machine, with a token, for tests: nodes that are raylets, skipped where Ray is not."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from elastic_core.host.network.interfaces import LOOPBACK
from elastic_core.settings import Settings
from tests.e2e.platform import PATIENCE, free_ports
from tests.required import lacks

START_SECONDS = 90.0
SETTLE_SECONDS = 2.0  # a head looks each second whether a part of it has ended, and ends with it
TUNED = {  # as docs/guide/machines.md gives them
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_JOB_START_TIMEOUT_SECONDS": "60",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
}


def skip_without_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        lacks("ray", "Ray is not installed here; `make ray` installs it")


class RayCluster:
    """One head, which is a node as well where `slots` is not 0; more nodes by `add`. Ended by `close`."""

    def __init__(self, slots: int, node: str = "n0", addresses: Mapping[str, str] = MappingProxyType({})) -> None:
        """`addresses`: those of this machine that nodes by these names have. The others' is what Ray takes for the
        machine's own, which they share."""
        self.addresses = addresses
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets have short names
        self.token_file = self.folder / "token"
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(secrets.token_urlsafe(32))
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.port, dashboard, client, agent = free_ports(4)
        self.gcs_address = f"{addresses.get(node, LOOPBACK)}:{self.port}"
        self.address = f"http://127.0.0.1:{dashboard}"
        head = [
            "--head",
            f"--port={self.port}",
            f"--ray-client-server-port={client}",
            f"--dashboard-agent-listen-port={agent}",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={dashboard}",
        ]
        options = [*head, f"--temp-dir={self.folder / 'ray'}"]
        self._start_patiently(node, slots, options, lambda: self._runs(node) and self._answers())

    def settings(self, home: Path, **changes: Any) -> Settings:
        """Of an installation of its own on this cluster."""
        return Settings(
            home=home, launcher="ray", ray_address=self.address, ray_token_file=self.token_file,
            ray_namespace=f"t{secrets.token_hex(6)}", **changes,
        )  # fmt: skip

    @property
    def environ(self) -> Mapping[str, str]:
        """Of whatever is to be a part of the cluster."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTIC_", "RAY_"))}
        return {
            **own, **TUNED, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token_file),
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1",
            "PATH": f"{Path(sys.executable).parent}:{own['PATH']}",
        }  # fmt: skip

    def add(self, node: str, slots: int) -> None:
        """One more, with an address of this machine and a folder of its own; returns when it says that it runs."""
        (agent,) = free_ports(1)
        options = [f"--address={self.gcs_address}", f"--dashboard-agent-listen-port={agent}"]
        self._start_patiently(node, slots, options, lambda: self._runs(node))

    def kill(self, node: str) -> None:
        """All of a node's processes of Ray, at once."""
        _kill(self._nodes.pop(node))

    def silence(self, node: str) -> None:
        """Stop a node's processes of Ray where they are: it answers nobody, and what they have started runs on."""
        for pid in _of_ray(self._nodes[node].pid):
            os.kill(pid, signal.SIGSTOP)

    @contextmanager
    def head_away(self) -> Iterator[None]:
        """Ray's head (its GCS) is as on a machine that is cut off: it answers nobody, and connections to it are broken,
        without which nodes would not take it for lost. Its node goes on. Root only."""
        every = [pid for node in self._nodes.values() for pid in _of_ray(node.pid)]
        (head,) = [pid for pid in every if b"gcs_server" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]]
        os.kill(head, signal.SIGSTOP)
        try:
            of_head = f"sport = :{self.port} or dport = :{self.port}"
            subprocess.run(["ss", "-K", "-t", of_head], check=True, stdout=subprocess.DEVNULL)
            yield
        finally:
            os.kill(head, signal.SIGCONT)

    def ended(self) -> list[str]:
        """Nodes that nobody here has killed, and that have ended all the same."""
        return [name for name, process in self._nodes.items() if process.poll() is not None]

    def close(self) -> None:
        for process in self._nodes.values():
            process.terminate()
        for process in self._nodes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                _kill(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_patiently(self, node: str, slots: int, options: list[str], works: Callable[[], bool]) -> None:
        """Ray gives up after 30 s where a busy machine lets parts of it wait: it is tried again then."""
        for further in (2, 1, 0):
            self._start(node, slots, options)
            try:
                self._wait(node, works)
                time.sleep(SETTLE_SECONDS)
                self._wait(node, works)
            except AssertionError:
                if not further:
                    self.close()
                    raise
                _kill(self._nodes.pop(node))
                (self.folder / f"{node}.log").unlink()
            else:
                return

    def _start(self, node: str, slots: int, options: list[str]) -> None:
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", *options,
            f"--node-ip-address={self.addresses.get(node, LOOPBACK)}", "--num-cpus=0",
            f'--resources={{"slot:cpu": {slots}}}', f"--labels=elastic.node={node}",
            f"--node-name={node}", "--object-store-memory=80000000", "--disable-usage-stats", "--block",
        ]  # fmt: skip
        with (self.folder / f"{node}.log").open("ab") as output:
            self._nodes[node] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(self.environ),
                start_new_session=True,
            )  # fmt: skip

    def _runs(self, node: str) -> bool:
        return "Ray runtime started" in (self.folder / f"{node}.log").read_text()

    def _answers(self) -> bool:
        """The dashboard, which the head has."""
        token = {"authorization": f"Bearer {self.token_file.read_text()}"}
        try:
            return httpx.get(f"{self.address}/api/jobs/", headers=token, timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def _wait(self, node: str, works: Callable[[], bool]) -> None:
        until = time.monotonic() + START_SECONDS * PATIENCE
        while not works():
            ended = self._nodes[node].poll() is not None
            if ended or time.monotonic() > until:
                said = (self.folder / f"{node}.log").read_text()[-3000:]
                raise AssertionError(f"node {node} {'has ended' if ended else 'does not come up in time'}:\n{said}")
            time.sleep(0.2)


def _kill(node: subprocess.Popen[bytes]) -> None:
    for pid in _of_ray(node.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.wait()


def _of_ray(root: int) -> list[int]:
    """A process and all of Ray's below it, their parents first."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            if words.startswith(b"ray::") or b"/ray/" in words:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(path.name))
        except OSError:
            continue
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found
