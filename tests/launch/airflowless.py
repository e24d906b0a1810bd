"""The platform without Airflow: ledger, control API on a real socket, launcher; and what operators do, in a thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import uvicorn
from fastapi import HTTPException

from elastic_core.control.ledger.database import Ledger
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.http_api import create_app
from elastic_core.domain import JobState
from elastic_core.errors import Conflict, InfrastructureError
from elastic_core.host.messages import AgentProcess, M, WorkerProcesses
from elastic_core.host.rundir import RunDir
from elastic_core.launch.host_reconcile import reconcile_host
from elastic_core.launch.launchers import start_segment
from elastic_core.launch.local import LocalLauncher
from elastic_core.protocol.events import Event
from elastic_core.protocol.http_client import HttpControl
from elastic_core.protocol.records import JobStatus, SegmentStatus
from elastic_core.settings import Settings
from elastic_core.spec import ClusterSpec, JobSpec
from elastic_core.train.entry import job_facts
from tests.builders import CONTROL_SECRET, TRAINER_SECRET, FakeJobRuns
from tests.launch.slot_watch import SlotWatch
from tests.train import tasks

ROWS = 96  # samples of the data set
PROJECT = Path(__file__).parents[2]


def refused() -> None:
    raise HTTPException(403)


class Api(Protocol):
    """The control API on its port, which can go away and come back."""

    def up(self) -> None: ...
    def down(self) -> None: ...


class ApiThread:
    """In this process, with a new control plane each time that it comes back."""

    def __init__(self, ledger_url: str, settings: Settings) -> None:
        self._ledger_url, self._settings = ledger_url, settings
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._plane: LedgerControl | None = None

    def up(self) -> None:
        ledger = Ledger(self._ledger_url, self._settings, time.time)
        self._plane = LedgerControl(ledger, self._settings, TRAINER_SECRET, FakeJobRuns())
        app = create_app(self._plane, service_secret=CONTROL_SECRET, user_reads=refused, user_writes=refused)
        port = int(self._settings.control_url.rpartition(":")[2])
        self._server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def down(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        assert self._plane is not None
        self._server.should_exit = True
        self._thread.join()
        self._plane.close()

    def events(self) -> list[Event]:
        assert self._plane is not None
        return list(self._plane.feed.events(0, 10_000))


class Platform:
    """`control` and `launcher` as an operator would have them."""

    def __init__(
        self, settings: Settings, api: Api, secret: bytes = CONTROL_SECRET, reconcile_seconds: float | None = None
    ) -> None:
        self.settings, self.home, self.api = settings, settings.home, api
        self.api.up()
        self.control = HttpControl(settings.control_url, secret)
        self._reconcile_seconds = reconcile_seconds
        self.launcher = LocalLauncher(settings)
        self.slot_watch = SlotWatch(settings.home)
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=target) for target in (self._drive, self._watch)]

    def pool(self, num_slots: int) -> None:
        nodes = [{"name": "here", "type": "cpu", "slots": num_slots}]
        self.control.set_cluster(ClusterSpec.model_validate({"nodes": nodes}))

    def submit(self, job_id: str, *, slots: tuple[int, int] = (1, 1), samples: int = 960, **more: Any) -> JobStatus:
        """A job of batches of 8 over 96 samples; each step takes 20 ms or more. Segments end by steps only."""
        folder = self.home / job_id
        folder.mkdir()
        params = {"rows": ROWS, "folder": str(folder), "sleep": 0.02, **more.pop("params", {})}
        spec = JobSpec.model_validate(
            {
                "name": job_id,
                "entry_point": "tests.train.tasks:recorded",
                "params": params,
                "work": {"samples": samples},
                "batch": {"min": 8, "max": 8},
                "slots": {"min": slots[0], "max": slots[1]},
                "segment": {"seconds": 3600, **more.pop("segment", {})},
                "audit": "full",
                "checkpoints": {"interval_seconds": None, **more.pop("checkpoints", {})},
                **more,
            }
        )
        return self.control.submit(job_id, spec, job_facts(tasks.recorded, spec))

    def wait(self, job_id: str, seconds: float = 90.0) -> JobStatus:
        """Until the job is over."""
        return self.until(lambda: self.control.job(job_id), lambda job: job.state is not JobState.ACTIVE, seconds)

    def until(self, ask: Any, enough: Any, seconds: float = 60.0) -> Any:
        deadline = time.monotonic() + seconds
        while not enough(answer := ask()):
            assert time.monotonic() < deadline, f"still {answer} after {seconds} s; logs:\n{self.logs()}"
            time.sleep(0.05)
        return answer

    def until_step(self, job_id: str, step: int, seconds: float = 60.0) -> None:
        """Until the job has taken this step, by what rank 0 has written."""
        path = self.home / job_id / "losses-rank0"
        self.until(lambda: path.exists() and max(self.curve(job_id), default=0), lambda last: last >= step, seconds)

    def running(self, job_id: str) -> SegmentStatus:
        """The job's open segment, once its processes have reported."""
        return self.until(
            lambda: self.control.segment(self.control.job(job_id).segment_id), lambda s: s.started_at and s.lease_live
        )

    def worker_pids(self, job_id: str) -> list[int]:
        order = self.control.launch_order(self.running(job_id).segment_id)
        workers = self.until(
            lambda: self._read(order.origin_epoch, WorkerProcesses), lambda message: message and message.workers
        )
        return [worker.pid for worker in workers.workers]

    def agent_pid(self, job_id: str) -> int:
        order = self.control.launch_order(self.running(job_id).segment_id)
        agent = self._read(order.origin_epoch, AgentProcess)
        assert agent is not None
        return agent.pid

    def curve(self, job_id: str, rank: int = 0) -> dict[int, str]:
        """Loss in hex by step; of a step that was taken again, the last time. A line that is being written is none."""
        lines = (self.home / job_id / f"losses-rank{rank}").read_text().splitlines(keepends=True)
        return {
            int(step): loss for step, loss in (line.split() for line in lines if " " in line and line.endswith("\n"))
        }

    def observed(self, job_id: str) -> dict[int, float]:
        """Losses as reported, by step."""
        assert isinstance(self.api, ApiThread)
        events = [event for event in self.api.events() if event.job_id == job_id and event.kind == "observed"]
        return {o["step"]: o["loss"] for event in events for o in event.payload["observations"]}

    def logs(self) -> str:
        paths = sorted((self.home / "run").glob("*/logs/*.log"))
        return "\n".join(f"== {path}\n{path.read_text()[-3000:]}" for path in paths)

    def reconcile(self) -> list[str]:
        return list(reconcile_host(self.control, self.launcher).actions)

    def _read(self, origin_epoch: int, kind: type[M]) -> M | None:
        return RunDir.of(self.home, origin_epoch).read(kind)

    def _drive(self) -> None:
        """What segment runs do: ask for slots, start what was granted and has no processes yet. And reconciliation."""
        reconciled = time.monotonic()
        while not self._closed.wait(0.1):
            try:
                if self._reconcile_seconds and time.monotonic() - reconciled > self._reconcile_seconds:
                    self.reconcile()
                    reconciled = time.monotonic()
                for job in self.control.jobs(active_only=True):
                    segment = self.control.acquire(job.segment_id)
                    if segment.lease_live and segment.started_at is None:
                        start_segment(self.control, self.launcher, self.settings, job.segment_id)
            except (Conflict, InfrastructureError):
                continue  # lost meanwhile, or the API is away: asked again

    def _watch(self) -> None:
        while not self._closed.wait(0.05):
            self.slot_watch.look()

    @property
    def held_twice(self) -> set[str]:
        """Slots on which two processes sat at once."""
        return self.slot_watch.held_twice

    def __enter__(self) -> Platform:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join()
        self.control.close()
        self.api.down()
        assert kind is not None or not self.held_twice


def settings_for(home: Path, **changes: Any) -> Settings:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    values: dict[str, Any] = {"lease_seconds": 20.0, "heartbeat_seconds": 0.2, "grace_seconds": 20.0}
    values |= {"node_memory_mb": 0, "policy": "fair_share", "project": PROJECT, "tasks": "tests.*"}
    return Settings(home=home, control_url=f"http://127.0.0.1:{port}", **{**values, **changes})


@contextmanager
def platform(home: Path, ledger_url: str, num_slots: int = 2, **changes: Any) -> Iterator[Platform]:
    """`changes` of the settings."""
    settings = settings_for(home, **changes)
    with Platform(settings, ApiThread(ledger_url, settings)) as found:
        found.pool(num_slots)
        yield found
