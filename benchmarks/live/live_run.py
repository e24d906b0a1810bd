"""One policy's run of the live workload on the real services, and everything that came of it as plain JSON.

Jobs are submitted as a user does it, by a run of `elastic_job` at the job's arrival; completion counts from that
request to the end of training in the ledger. What is collected afterwards proves the run: every sample read once, every
model evaluated and registered, every run in Airflow ended well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import psutil
from sqlalchemy import create_engine, text

from benchmarks.live.live_workload import LiveJob, LiveWorkload
from elastic_core.domain import JobState
from elastic_core.protocol.process_groups import held_out
from elastic_core.protocol.records import JobStatus, SegmentStatus
from elastic_core.services.secrets import read_secret
from elastic_core.spec import JobSpec
from elastic_core.state.stores.store_urls import open_store
from elastic_core.track import model_registry
from elastic_core.train.data.audit import prove
from tests.e2e.platform import PATIENCE, Platform, eventually

POLL_SECONDS = 1.0
REGISTERED_SECONDS = 240.0  # after the last job's training, for the tasks that evaluate and register
# Time without training around each start and each change of slots or processes: from the grant of the first lease, or
# from the last step before, to the first step after.
PAUSES = text(
    """
    SELECT y.job_id AS job,
           coalesce((p.timings->>'last_step_at')::float8, y.granted_at) AS since,
           (c.timings->>'first_step_at')::float8 AS until,
           x.epoch IS NOT NULL AND x.origin_epoch = y.origin_epoch AS in_place
    FROM leases y
    JOIN checkpoints c ON c.id = (SELECT min(e.id) FROM checkpoints e WHERE e.epoch = y.epoch)
    LEFT JOIN LATERAL (
        SELECT l.epoch, l.allocation, l.origin_epoch FROM leases l
        WHERE l.job_id = y.job_id AND l.epoch < y.epoch ORDER BY l.epoch DESC LIMIT 1
    ) x ON true
    LEFT JOIN checkpoints p ON p.id = (SELECT max(e.id) FROM checkpoints e WHERE e.epoch = x.epoch)
    WHERE c.timings ? 'first_step_at'
      AND (x.epoch IS NULL OR x.origin_epoch <> y.origin_epoch OR x.allocation->'slots' <> y.allocation->'slots')
    ORDER BY y.epoch
    """
)


@dataclass(slots=True)
class Cores:
    """How busy this machine was: of all its cores' time, what anything used."""

    began: Any = field(default_factory=psutil.cpu_times)
    memory: list[float] = field(default_factory=list)  # bytes in use, now and then

    def look(self) -> None:
        self.memory.append(float(psutil.virtual_memory().used))

    def busy(self) -> float:
        now = psutil.cpu_times()
        spent = {name: getattr(now, name) - getattr(self.began, name) for name in now._fields if "guest" not in name}
        idle = float(spent["idle"] + spent.get("iowait", 0.0))
        return 1.0 - idle / float(sum(spent.values()))


def run(
    platform: Platform, loaded: LiveWorkload, specs: Mapping[str, JobSpec], *, most_seconds: float, tell: Any = print
) -> dict[str, Any]:
    """Run the workload to its end on a platform that is up. Raises `AssertionError` where it takes too long."""
    platform.control.set_cluster(loaded.cluster())
    cores, began = Cores(), time.time()
    requested = _submit_all(platform, loaded, specs, began, cores, tell)
    ids = [job.name for job in loaded.jobs]
    eventually(lambda: _over(platform, ids, began, cores, tell), most_seconds, "all jobs have ended")
    busy, ended = cores.busy(), time.time()
    states = _airflow_states(platform, ids)
    jobs = [_outcome(platform, job, requested[job.name], states[job.name]) for job in loaded.jobs]
    return {
        "began": began,
        "seconds": ended - began,
        "cpu_busy": busy,
        "memory_gib": max(cores.memory, default=0.0) / 2**30,
        "jobs": jobs,
        "pauses": pauses(platform),
    }


def _submit_all(
    platform: Platform, loaded: LiveWorkload, specs: Mapping[str, JobSpec], began: float, cores: Cores, tell: Any
) -> dict[str, float]:
    requested = {}
    for job in loaded.jobs:
        while (left := began + job.arrival - time.time()) > 0:
            time.sleep(min(left, 10 * POLL_SECONDS))
            cores.look()
        requested[job.name] = time.time()
        platform.trigger("elastic_job", {"spec": specs[job.name].model_dump(mode="json")}, job.name)
        tell(f"{time.time() - began:6.0f} s  {job.name} is submitted")
    return requested


def _over(platform: Platform, ids: Sequence[str], began: float, cores: Cores, tell: Any) -> bool:
    time.sleep(POLL_SECONDS)
    cores.look()
    jobs = {job.job_id: job for job in platform.control.jobs() if job.job_id in ids}
    active = [job for job in jobs.values() if job.state is JobState.ACTIVE]
    if int(time.time() - began) % 30 == 0:
        held = ", ".join(f"{job.job_id} {_held(job)} {job.done_samples / job.total_samples:.0%}" for job in active)
        tell(f"{time.time() - began:6.0f} s  {len(jobs) - len(active)} done; {held}")
    return len(jobs) == len(ids) and not active


def _held(job: JobStatus) -> str:
    if job.allocation is None:
        return "-"
    kind = job.allocation.slots[0].type
    return f"{job.allocation.num_slots} {kind} at {job.allocation.global_batch}"


def _airflow_states(platform: Platform, ids: Sequence[str]) -> dict[str, str]:
    """How the runs of `elastic_job` ended, evaluation and registration included."""
    deadline = time.monotonic() + REGISTERED_SECONDS * PATIENCE
    while True:
        states = {job_id: platform.run_state("elastic_job", job_id) for job_id in ids}
        if set(states.values()) <= {"success", "failed"} or time.monotonic() > deadline:
            return states
        time.sleep(POLL_SECONDS)


def _outcome(platform: Platform, live_job: LiveJob, requested_at: float, airflow: str) -> dict[str, Any]:
    job, segments = platform.control.job(live_job.name), platform.control.segments(live_job.name)
    store = open_store(platform.settings.store_url())
    reads = prove(platform.control.reads(job.job_id), job.facts.dataset_samples, store)
    champion = model_registry.champion(platform.control, platform.settings, job.spec.registered_model or job.spec.name)
    granted = [segment for segment in segments if segment.granted_at is not None]
    return {
        "name": job.job_id,
        "state": str(job.state),
        "error": job.error,
        "airflow": airflow,
        "requested_at": requested_at,
        "submitted_at": job.submitted_at,
        "asked_at": segments[0].asked_at,
        "granted_at": granted[0].granted_at if granted else None,
        "finished_at": job.finished_at,
        "completion_seconds": None if job.finished_at is None else job.finished_at - requested_at,
        "samples": job.done_samples,
        "total_samples": job.total_samples,
        "steps": job.step,
        "segments": [_segment(segment) for segment in granted],
        "resizes": sum(_slots(a) != _slots(b) for a, b in pairwise(granted)),
        "batch_changes": sum(_batch(a) != _batch(b) for a, b in pairwise(granted)),
        "restarts": sum(segment.attempt for segment in segments),
        "reads": [asdict(verdict) for verdict in reads],
        "evaluation": held_out(job.results),
        "registered": champion.version if champion is not None else None,
    }


def _slots(segment: SegmentStatus) -> Any:
    return segment.allocation and set(segment.allocation.slots)


def _batch(segment: SegmentStatus) -> Any:
    return segment.allocation and segment.allocation.global_batch


def _segment(segment: SegmentStatus) -> dict[str, Any]:
    assert segment.allocation is not None
    return {
        "index": segment.index,
        "slots": segment.allocation.counts(),
        "batch": segment.allocation.global_batch,
        "granted_at": segment.granted_at,
        "ended_at": segment.ended_at,
        "handed_over": segment.handed_over,
        "why": segment.grant_reason,
    }


def pauses(platform: Platform) -> list[dict[str, Any]]:
    """Every start, resize and restart so far: job, since, until (seconds of the epoch), in_place."""
    engine = create_engine(read_secret(platform.settings, "ledger_url"))
    with engine.connect() as connection:
        rows = [dict(row) for row in connection.execute(PAUSES).mappings()]
    engine.dispose()
    return rows


def problems(loaded: LiveWorkload, outcome: Mapping[str, Any]) -> list[str]:
    """What was promised of every job and did not happen, in words; [] where all is right."""
    wrong = []
    ends = {job.name: job for job in loaded.jobs}
    for job in outcome["jobs"]:
        live_job, name = ends[job["name"]], job["name"]
        if job["state"] != JobState.FINISHED:
            wrong.append(f"{name} is {job['state']}: {job['error']}")
            continue
        if job["airflow"] != "success":
            wrong.append(f"{name}: its run of elastic_job ended as {job['airflow']}")
        if live_job.target_loss is None and job["samples"] != live_job.samples:
            wrong.append(f"{name} ended after {job['samples']} of {live_job.samples} samples")
        if not 0 < job["samples"] <= live_job.most_samples:
            wrong.append(f"{name} trained on {job['samples']} samples, and at most {live_job.most_samples} are allowed")
        wrong += [f"{name}: epoch {read['epoch']}: {read['problem']}" for read in job["reads"] if read["problem"]]
        unproven = [read for read in job["reads"][:-1] if not (read["proven"] and read["every_index"])]
        wrong += [f"{name}: epoch {read['epoch']} is not proven to be read exactly once" for read in unproven]
        if sum(read["count"] for read in job["reads"]) != job["samples"]:
            wrong.append(f"{name}: the reads of {job['samples']} samples are not all recorded")
        if not job["evaluation"] or job["registered"] is None:
            wrong.append(f"{name} was not evaluated and registered")
    return wrong


def mean_completion(outcome: Mapping[str, Any]) -> float:
    """Seconds; a job that did not end counts until the run's end."""
    until = outcome["began"] + outcome["seconds"]
    return statistics.fmean((job["finished_at"] or until) - job["requested_at"] for job in outcome["jobs"])
