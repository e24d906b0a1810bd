"""Small builders for specs, clusters and a control plane on a test database. Defaults: the simplest valid thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from elastic_core.control.ledger import forecast_rows
from elastic_core.control.ledger.database import Ledger
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import Layout, Observation
from elastic_core.errors import Conflict, NotFound
from elastic_core.protocol.callers import Caller, name_of
from elastic_core.protocol.encoding import dumps, loads
from elastic_core.protocol.forecasts import Forecast
from elastic_core.protocol.job_runs import JobRun, JobRuns
from elastic_core.protocol.process_groups import ExitKind, ExitReport, LaunchOrder
from elastic_core.protocol.records import ChampionMoved, JobFacts
from elastic_core.protocol.trainer import Commit, Heartbeat
from elastic_core.settings import Settings
from elastic_core.spec import ClusterSpec, JobSpec
from tests.ledger_engines import engine_of

TRAINER_SECRET = b"trainer-secret-of-the-tests-0123456789"
CONTROL_SECRET = b"control-secret-of-the-tests-0123456789"


class FakeClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        self.now += seconds
        return self.now


def a_cluster(nodes: Mapping[str, int] | None = None, type: str = "cpu") -> ClusterSpec:
    """Two nodes of two CPU slots, or `nodes` as name -> slots."""
    wanted = nodes or {"node-a": 2, "node-b": 2}
    return ClusterSpec.model_validate(
        {"nodes": [{"name": name, "type": type, "slots": slots} for name, slots in wanted.items()]}
    )


def a_spec(
    name: str = "digits", *, slots: tuple[int, int] | Mapping[str, Any] = (1, 4), batch: tuple[int, int] = (16, 256),
    **more: Any,
) -> JobSpec:  # fmt: skip
    """A job of 10,000 samples. Further keys as in the JSON of a spec."""
    return JobSpec.model_validate(
        {
            "name": name,
            "entry_point": "examples.digits:Digits",
            "work": {"samples": 10_000},
            "batch": {"min": batch[0], "max": batch[1]},
            "slots": slots if isinstance(slots, Mapping) else {"min": slots[0], "max": slots[1]},
            **more,
        }
    )


FACTS = JobFacts(dataset_samples=1_000, metric="loss", metric_mode="min")


def settings(home: Path, **more: Any) -> Settings:
    return Settings(home=home, **{"policy": "fair_share", **more})


def a_control(url: str, home: Path, clock: Any, runs: JobRuns | None = None, **more: Any) -> LedgerControl:
    """A control plane in process, on a migrated database."""
    chosen = settings(home, **more)
    return LedgerControl(Ledger(engine_of(url), chosen, clock), chosen, TRAINER_SECRET, runs)


class KeptChampions:
    """A registry of models in memory: which versions there are, and which of them were champions, the newest last."""

    def __init__(self, **versions: tuple[str, ...]) -> None:
        self.versions, self.champions = versions, {name: [numbers[0]] for name, numbers in versions.items()}

    def champion(self, model: str) -> str | None:
        if model not in self.versions:
            raise NotFound(f"there is no registered model {model!r}")
        return self.champions[model][-1]

    def promote(self, model: str, version: str, instead_of: str | None = None) -> ChampionMoved:
        if version not in self.versions.get(model, ()):
            raise NotFound(f"model {model} has no version {version}")
        before = self.champions[model][-1]
        if instead_of not in (None, before, version):
            raise Conflict(f"version {version} was judged against {instead_of}, and {before} is the champion")
        if before != version:
            self.champions[model].append(version)
        return ChampionMoved(name=model, before=before, now=version)

    def roll_back(self, model: str, to: str, instead_of: str | None = None) -> ChampionMoved:
        before = self.champions[model][-1]
        if before != to and instead_of not in (None, before):
            raise Conflict(f"{before} is the champion, and not {instead_of}")
        if before != to:
            self.champions[model].pop()
        return ChampionMoved(name=model, before=before, now=to)


class FakeJobRuns:
    """Airflow's runs of jobs as a dictionary by run id; `end` plays what Airflow would do with one."""

    def __init__(self) -> None:
        self.runs: dict[str, JobRun] = {}
        self.tried_again: list[str] = []
        self.started_for: dict[str, Caller | None] = {}
        self.segments: dict[str, str] = {}  # state of a segment's run, by its id
        self.segments_started: list[str] = []
        self.segments_cleared: list[str] = []

    def look(self, job_id: str, results: Mapping[str, Any]) -> JobRun | None:
        return self.runs.get(results.get("airflow", {}).get("run_id", job_id))

    def start(self, job_id: str, conf: Mapping[str, Any], caller: Caller | None = None) -> bool:
        if job_id in self.runs:
            return False
        self.started_for[job_id] = caller
        self.runs[job_id] = JobRun(
            dag_id="elastic_job", run_id=job_id, conf=loads(dumps(conf)), succeeded=None, started_by=name_of(caller)
        )
        return True

    def try_again(self, job_id: str) -> None:
        self.tried_again.append(job_id)
        self.runs[job_id] = replace(self.runs[job_id], succeeded=None, refusal=None)

    def ensure_segments(self, job_id: str, over: Mapping[str, bool]) -> list[str]:
        begun = [one for one in over if one not in self.segments]
        again = [one for one in over if self.segments.get(one) in ("success", "failed") and not over[one]]
        self.segments_started += begun
        self.segments_cleared += again
        self.segments |= dict.fromkeys(begun + again, "running")
        return [f"run {one} started" for one in begun] + [f"run {one} cleared" for one in again]

    def end(self, job_id: str, *, succeeded: bool, refusal: str | None = None) -> None:
        self.runs[job_id] = replace(self.runs[job_id], succeeded=succeeded, refusal=refusal)


_nonces = count()


def a_commit(order: LaunchOrder, step: int, *, final: bool = False, finished: bool = False, **more: Any) -> Commit:
    """A commit of `step` steps of 10 samples, in a folder of its own."""
    uri = f"{order.job_id}/lineage-{order.lineage}/step-{step:010d}-epoch-{order.epoch}-{next(_nonces)}"
    values: dict[str, Any] = {
        "samples": step * 10,
        "uri": uri,
        "manifest_sha256": "0" * 64,
        "size_bytes": 1,
        "layout": Layout(data=order.allocation.num_slots),
        "metrics": {"loss": 1.0 / (step + 1)},
        **more,
    }
    return Commit(step=step, final=final or finished, finished=finished, **values)


def a_beat(step: int, at: float = 0.0) -> Heartbeat:
    return Heartbeat(step=step, samples=step * 10, at=at)


def an_observation(step: int, order: LaunchOrder, **more: Any) -> Observation:
    batch, slots = order.allocation.global_batch, order.allocation.num_slots
    values: dict[str, Any] = {
        "step": step,
        "samples": step * 10,
        "at": 1.0 * step,
        "epoch": step / 100,
        "num_slots": slots,
        "num_nodes": order.allocation.num_nodes,
        "type": order.allocation.slots[0].type,
        "global_batch": batch,
        "local_batch": -(-batch // slots),
        "accumulation": 1,
        "step_seconds": 0.1,
        "sync_seconds": 0.01,
        "samples_per_second": batch / 0.1,
        "loss": 1.0,
        "learning_rate": 0.1,
        "layout": None if order.allocation.layout == Layout(data=slots) else order.allocation.layout,
        **more,
    }
    return Observation(**values)


def is_forecast(control: LedgerControl, job_id: str, left: float, done: float = 0.0) -> None:
    """A decision expects so much work left of the job, once so much is done; half or twice as much at the ends."""
    forecast = Forecast(
        at=control.now(), lineage=0, done=done, work_left=(left / 2, left, left * 2), work_source="history",
        finish_at=None, assumes=None, finish_source="", policy="fair_share", decision_id=1,
    )  # fmt: skip
    control._ledger.write(lambda tx: forecast_rows.add(tx, {job_id: forecast}))


GONE_AT_BOUNDARY = ExitReport(kind=ExitKind.BOUNDARY)


@dataclass
class Life:
    """One job played by hand: what an operator, a launcher and a trainer do, on any implementation of the contract."""

    control: Any  # ServiceControl
    trainer: Any  # token -> TrainerControl
    job_id: str
    agents: dict[int, str] = field(default_factory=dict)  # their tokens, by origin epoch

    def segment_id(self) -> str:
        found: str = self.control.job(self.job_id).segment_id
        return found

    def start(self, step: int = 0) -> LaunchOrder:
        """Ask for the open segment's slots, and send the first heartbeat of its processes."""
        self.control.acquire(self.segment_id())
        order: LaunchOrder = self.control.launch_order(self.segment_id())
        self.agents[order.origin_epoch] = order.agent_token
        self.trainer(order.token).heartbeat(a_beat(step))
        return order

    def leave(self, order: LaunchOrder, kind: str = "boundary", error: str = "") -> None:
        token = order.agent_token or self.agents[order.origin_epoch]  # none in an order that passed on
        self.trainer(token).exited(ExitReport(kind=ExitKind(kind), error=error))
