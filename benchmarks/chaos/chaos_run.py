"""One run: a platform of its own, jobs at work, faults, then peace until all jobs have ended; and what came of it."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from sqlalchemy import create_engine

from benchmarks.chaos.chaos_jobs import SLOTS, JobSupply, cluster
from benchmarks.chaos.event_log import EventLog
from benchmarks.chaos.fault_kinds import ACTS, HANG, OTHERS, Fault, Hurting
from benchmarks.chaos.fault_plan import KILL_WORKER, PlannedFault, fault_plan
from benchmarks.chaos.figures import Effective, effective_times, recoveries, waits_for_slots
from benchmarks.chaos.victims import Victims
from benchmarks.chaos.witness import Witness
from benchmarks.common.ledger_history import Picture
from elastic_core.domain import JobState
from elastic_core.services.secrets import read_secret
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.data.audit import prove
from tests.e2e.platform import PATIENCE, Platform, eventually
from tests.launch.slot_watch import SlotWatch

TRAINING_SECONDS = 180.0  # until the first jobs train
WAIT_SECONDS = 20.0  # for something to be there that a fault can hit
PEACE_SECONDS = 600.0  # after the faults, until all jobs have ended
REGISTERED_SECONDS = 240.0  # after that, for the tasks that evaluate and register
POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a run is to be. `job_seconds`: of a job on one slot."""

    minutes: float
    seed: int
    faults: int
    lanes: int
    job_seconds: float
    kinds: tuple[str, ...] = OTHERS
    settings: dict[str, Any] = field(default_factory=dict)  # other than the defaults


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of it; `wrong`: promises that were broken, in words."""

    faults: list[Fault] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)  # planned faults that found nothing to hit
    jobs: list[dict[str, Any]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    held_twice: set[str] = field(default_factory=set)
    looks: int = 0
    recoveries: dict[int, float] = field(default_factory=dict)  # seconds by the killed worker's pid
    waits: dict[int, float] = field(default_factory=dict)  # of these, until the job had slots again
    needless: list[Fault] = field(default_factory=list)  # killed workers whose job took no step any more
    hung: dict[int, float] = field(default_factory=dict)  # seconds until found, by pid
    not_found: list[Fault] = field(default_factory=list)  # hung, and never found
    hang_bound: float = 0.0  # seconds: two heartbeats plus the grace
    effective: list[Effective] = field(default_factory=list)
    peace_seconds: float = 0.0
    orphans: list[str] = field(default_factory=list)


def chaos(chosen: Chosen, log: EventLog, *, keep_home: bool = False) -> Outcome:
    """Raises `AssertionError` where the platform does not come up or no job begins to train."""
    home = Path(tempfile.mkdtemp(prefix="elastic-chaos-"))
    Hurting.lay_store(home)
    platform = Platform(home, **chosen.settings)
    platform.settings.cluster.write_text(json.dumps(cluster().model_dump(mode="json")))  # type: ignore[union-attr]
    outcome = Outcome(hang_bound=2 * platform.settings.heartbeat_seconds + platform.settings.grace_seconds)
    try:
        log.say("the platform starts", home=home)
        platform.up()
        _hurt_and_judge(platform, chosen, log, outcome)
    finally:
        log.say("the platform stops")
        platform.elastic("down", check=False)
        outcome.orphans = Victims(home).left()
        log.say("the platform is down", orphans=outcome.orphans)
        if not keep_home and not outcome.orphans:
            shutil.rmtree(home, ignore_errors=True)
    return outcome


def _hurt_and_judge(platform: Platform, chosen: Chosen, log: EventLog, outcome: Outcome) -> None:
    url = read_secret(platform.settings, "ledger_url")
    witness = Witness(url, SlotWatch(platform.home), log)
    hurting = Hurting(platform, witness.picture)
    supply = JobSupply(platform, log, chosen.lanes, chosen.job_seconds, witness.picture)
    try:
        witness.start()
        supply.start()
        eventually(lambda: len(hurting.groups()) >= min(chosen.lanes, SLOTS) // 2, TRAINING_SECONDS, "jobs train")
        plan = fault_plan(chosen.seed, chosen.faults, 60 * chosen.minutes, chosen.kinds)
        _faults(plan, 60 * chosen.minutes, hurting, witness, log, outcome)
        hurting.end()
        names = supply.enough()
        _peace(names, platform, witness, log, outcome)
    finally:
        hurting.end()
        witness.close()
        supply.enough()
    outcome.violations, outcome.held_twice, outcome.looks = witness.violations, witness.held_twice, witness.looks
    outcome.hung, outcome.not_found = witness.found_hung, witness.still_hung
    _figures(url, outcome)
    outcome.jobs = [_job(platform, name) for name in names]


def _faults(
    plan: list[PlannedFault], seconds: float, hurting: Hurting, witness: Witness, log: EventLog, outcome: Outcome
) -> None:
    log.say("faults begin", planned=len(plan))
    began = time.monotonic()
    for planned in plan:
        _sleep_until(began + planned.at)
        rng = Random(planned.seed)
        fault = _first(lambda act=ACTS[planned.kind], rng=rng: act(hurting, rng))
        if fault is None:
            log.say("nothing to hit", kind=planned.kind)
            outcome.missed.append(planned.kind)
            continue
        outcome.faults.append(fault)
        log.say(fault.kind, **({"job": fault.job} if fault.job else {}), **fault.facts)
        if fault.kind == HANG:
            witness.expect_end_of(fault)
    _sleep_until(began + seconds)
    log.say("faults are over", happened=len(outcome.faults))


def _first(act: Callable[[], Fault | None]) -> Fault | None:
    """Tried until there is something to hit, for `WAIT_SECONDS` at most."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (fault := act()) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return fault


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _peace(names: list[str], platform: Platform, witness: Witness, log: EventLog, outcome: Outcome) -> None:
    """Nobody does anything, until every job has ended, its model is registered, and all services are well."""
    began = time.monotonic()
    deadline = began + PEACE_SECONDS * PATIENCE
    while time.monotonic() < deadline and not _all_over(witness.picture(), names):
        time.sleep(POLL_SECONDS)
    outcome.peace_seconds = time.monotonic() - began
    log.say("jobs have ended" if _all_over(witness.picture(), names) else "jobs have NOT ended in time")
    try:
        eventually(lambda: _runs_over(platform, names), REGISTERED_SECONDS, "Airflow's runs of all jobs have ended")
        platform.wait_healthy(REGISTERED_SECONDS, "after the last fault")
    except AssertionError as late:
        outcome.violations.append(str(late))


def _all_over(picture: Picture | None, names: list[str]) -> bool:
    jobs = picture.jobs if picture is not None else {}
    return all(name in jobs and jobs[name]["state"] != "active" for name in names)


def _runs_over(platform: Platform, names: list[str]) -> bool:
    return {_run_state(platform, name) for name in names} <= {"success", "failed"}


def _run_state(platform: Platform, name: str) -> str:
    return platform.run_state("elastic_job", name)


def _figures(url: str, outcome: Outcome) -> None:
    engine = create_engine(url)
    killed = [fault for fault in outcome.faults if fault.kind == KILL_WORKER]
    outcome.recoveries, outcome.needless = recoveries(engine, killed)
    outcome.waits = waits_for_slots(engine, killed)
    outcome.effective = effective_times(engine)
    engine.dispose()


def _job(platform: Platform, name: str) -> dict[str, Any]:
    """What became of it. `wrong`: in words."""
    job = platform.control.job(name)
    store = open_store(platform.settings.store_url())
    verdicts = prove(platform.control.reads(name), job.facts.dataset_samples, store)
    airflow = _run_state(platform, name)
    wrong = [f"{name}: epoch {verdict.epoch}: {verdict.problem}" for verdict in verdicts if verdict.problem]
    wrong += [
        f"{name}: epoch {verdict.epoch} is not proven to be read exactly once"
        for verdict in verdicts[:-1]
        if not (verdict.proven and verdict.every_index)
    ]
    read, finished = sum(verdict.count for verdict in verdicts), job.state is JobState.FINISHED
    if finished and read != job.total_samples:
        wrong.append(f"{name}: {read} of {job.total_samples} samples were read")
    segments = platform.control.segments(name)
    return {
        "name": name,
        "state": str(job.state),
        "error": job.error,
        "airflow": airflow,
        "ended_well": finished and airflow == "success",
        "wrong": wrong,
        "samples": job.done_samples,
        "segments": len(segments),
        "attempts_lost": sum(segment.attempt for segment in segments),
        "end_reasons": [segment.end_reason for segment in segments],
        "notes": list(job.notes),
        "seconds": job.finished_at - job.submitted_at if job.finished_at else None,
    }
