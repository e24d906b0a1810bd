"""Always as many jobs as there are lanes: as one ends, the lane's next is submitted, as a user does it; and an operator
who takes back the nodes that the platform sets aside because jobs failed on them.

Jobs are those of `examples.paced`: real processes, data order, exchange, checkpoints and resizes on a small model, with
steps that last as long as a profile says. Every index that they read is kept (`audit: full`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

from benchmarks.chaos.event_log import EventLog
from benchmarks.common.ledger_history import Picture
from elastic_core.errors import InfrastructureError
from elastic_core.spec import ClusterSpec
from examples.paced import PacedParams, entry_point
from tests.e2e.platform import Platform

EPOCH_SAMPLES = 1024
POLL_SECONDS = 1.0
KINDS = ("balanced", "compute-bound", "hardly-scaling", "exchange-bound")
BATCH = 64
SECONDS_A_STEP = 0.35  # of these jobs on one slot, about
CHECKPOINT_SECONDS = 10.0
WIDTH = 256  # 84,000 weights: a checkpoint of 1 MB
SLOTS = 12
CONTROL_SECONDS = 5.0  # between two looks at which nodes are set aside


def cluster() -> ClusterSpec:
    """4 nodes of 3 slots."""
    return ClusterSpec.model_validate(
        {"nodes": [{"name": f"node-{name}", "type": "t4", "slots": SLOTS // 4} for name in "abcd"]}
    )


def job_spec(name: str, lane: int, seconds: float) -> dict[str, Any]:
    """A job of about so many seconds on one slot, and shorter on more."""
    return {
        "name": name,
        "entry_point": entry_point(KINDS[lane % len(KINDS)]),
        "params": PacedParams(samples=EPOCH_SAMPLES, width=WIDTH).model_dump(),
        "work": {"samples": BATCH * max(20, round(seconds / SECONDS_A_STEP))},
        "batch": {"min": BATCH, "max": 2 * BATCH},
        "slots": {"min": 1, "max": 3},
        "segment": {"seconds": 60.0},
        "checkpoints": {"interval_seconds": CHECKPOINT_SECONDS},
        "audit": "full",
        "seed": lane,
    }


class JobSupply:
    """Keeps every lane busy until `enough` is called."""

    def __init__(
        self, platform: Platform, log: EventLog, lanes: int, seconds: float, picture: Callable[[], Picture | None]
    ) -> None:
        """`seconds`: that a job takes on one slot; `picture`: the ledger as it was seen last."""
        self._platform, self._log, self._seconds, self._picture = platform, log, seconds, picture
        self._current = {lane: self._name(lane, 0) for lane in range(lanes)}
        self._to_submit = set(self._current.values())
        self._enough = threading.Event()
        self._looked = 0.0
        self._thread = threading.Thread(target=self._work, name="jobs")
        self._failed: BaseException | None = None
        self.submitted: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def enough(self) -> list[str]:
        """Submit no more; all that were submitted. Raises what has kept it from that."""
        self._enough.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._failed is not None:
            raise self._failed
        return self.submitted

    @staticmethod
    def _name(lane: int, number: int) -> str:
        return f"lane-{lane}-{number}"

    def _work(self) -> None:
        try:
            self._keep_up()
        except Exception as error:  # noqa: BLE001 - raised where somebody asks for what was submitted
            self._log.say("no more jobs are submitted", why=str(error))
            self._failed = error

    def _keep_up(self) -> None:
        while not self._enough.wait(POLL_SECONDS):
            self._take_back_nodes()
            picture = self._picture()
            for lane, name in self._current.items():
                if name in self._to_submit:
                    self._submit(lane, name)
                elif picture and picture.jobs.get(name, {"state": "active"})["state"] != "active":
                    self._log.say("a job has ended", job=name, state=picture.jobs[name]["state"])
                    self._current[lane] = self._name(lane, int(name.rpartition("-")[2]) + 1)
                    self._to_submit.add(self._current[lane])

    def _take_back_nodes(self) -> None:
        """As an operator would: whose workers are killed is not to blame for it, but the platform cannot know."""
        if time.monotonic() - self._looked < CONTROL_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            for node in self._platform.control.nodes():
                if node.set_aside_at is not None:
                    self._platform.control.take_back_node(node.name)
                    self._log.say("a node was set aside, and is taken back", node=node.name, why=node.set_aside_reason)
        except InfrastructureError:
            return  # the API server is away: at the next look

    def _submit(self, lane: int, name: str) -> None:
        """By a run of `elastic_job`; tried again with the same id where the API server is away."""
        body = {"logical_date": None, "dag_run_id": name, "conf": {"spec": job_spec(name, lane, self._seconds)}}
        try:
            answer = self._platform.airflow.post("/dags/elastic_job/dagRuns", json=body)
        except httpx.TransportError:
            return
        if answer.status_code in (httpx.codes.OK, httpx.codes.CONFLICT):
            self._to_submit.discard(name)
            self.submitted.append(name)
            self._log.say("a job is submitted", job=name)
        elif answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
            raise AssertionError(f"{name} was refused: {answer.status_code} {answer.text}")
