"""Placed jobs on services of their own, submitted as a user does it, and what the platform says and has recorded."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from sqlalchemy import create_engine, text

from benchmarks.placement_real import real_jobs
from benchmarks.placement_real.price_range import Measured
from benchmarks.placement_real.task import read_curve
from elastic_core.domain import JobState
from elastic_core.host.messages import WorkerProcesses
from elastic_core.host.rundir import RunDir
from elastic_core.placement.placed_words import figures_words, stages_words
from elastic_core.protocol.records import JobStatus
from elastic_core.services.secrets import read_secret
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.data.audit import AuditResult, prove
from tests.e2e.platform import Platform, eventually

POLL_SECONDS = 1.0
STARTED_SECONDS, ENDED_SECONDS = 180.0, 600.0
RIVAL_STEPS = 3
STEPS_BEFORE = 3  # of what is resized or killed then
STEPS = text("""
    SELECT o.step_seconds, o.global_batch, l.allocation -> 'stages' AS stages
    FROM observations o JOIN leases l ON l.epoch = o.epoch WHERE o.job_id = :job ORDER BY o.id
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """`stages`: one after the other; `attempts`: beyond the first of each segment; `worst`: relative difference of a
    loss to that of the undisturbed job; `steps`: taken, with those that were taken again."""

    stages: tuple[str, ...]
    attempts: int
    killed: str
    reads: tuple[AuditResult, ...]
    steps: int
    worst: float


class RealServices:
    """A platform that is up, with the profile's pool."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self._began = time.monotonic()
        platform.control.set_cluster(real_jobs.cluster())

    def measure(self, spec: Mapping[str, Any]) -> Measured:
        """Run the job alone. Raises `RuntimeError` where it does not finish, or changes its stages on the way."""
        name = spec["name"]
        self._submit(spec)
        begun = self._trains(name, 1)
        assert begun.placed is not None
        assert begun.allocation is not None
        shown = begun

        def ended() -> JobStatus | None:
            nonlocal shown
            time.sleep(POLL_SECONDS)
            status = self._job(name)
            if status.allocation is not None and status.samples_per_second:
                shown = status
            return status if status.state is not JobState.ACTIVE else None

        status: JobStatus = eventually(ended, ENDED_SECONDS, f"{name} ends")
        self._finished(status)
        self._say(f"{name} is done; shown last: {stages_words(shown)}; {figures_words(shown)}")
        steps = list(self._steps(name))
        stages = {json.dumps(of_step["stages"], sort_keys=True) for of_step in steps}
        if len(stages) != 1:
            raise RuntimeError(f"{name} trained under {len(stages)} sets of stages, not one: {sorted(stages)}")
        cpu, accelerator = real_jobs.names()
        counts = begun.allocation.counts()
        return Measured(
            name=name, stages=stages_words(begun), cpus=counts.get(cpu, 0), accelerators=counts.get(accelerator, 0),
            predicted=begun.placed.samples_per_second, rate=begun.price_per_hour,
            throughput=median(one["global_batch"] / one["step_seconds"] for one in steps),
        )  # fmt: skip

    def disturb(self, steps: int) -> Disturbed:
        """A placed job of which another takes slots, then one process is killed; and one that nobody disturbs."""
        curves = {name: self.platform.home / f"{name}.curve" for name in ("disturbed", "undisturbed")}
        self._submit(real_jobs.recorded("disturbed", steps, curves["disturbed"]))
        first = self._trains("disturbed", STEPS_BEFORE)
        cpu, _ = real_jobs.names()
        assert first.allocation is not None
        left = max(1, first.allocation.counts()[cpu] // 2)
        units = next(kind.units for kind in real_jobs.profile().types if kind.name == cpu)
        self._submit(real_jobs.rival("rival", RIVAL_STEPS, units - left))
        fewer = eventually(lambda: self._on_fewer(first), STARTED_SECONDS, "the placed job goes on on fewer slots")
        self._say(f"disturbed makes room: {stages_words(fewer)}")
        self._trains("disturbed", fewer.step + STEPS_BEFORE)
        killed = self._kill("disturbed")
        self._over("rival")
        done = self._over("disturbed")
        self._submit(real_jobs.undisturbed("undisturbed", steps, curves["undisturbed"]))
        self._over("undisturbed")
        segments = self.platform.control.segments("disturbed")
        held = ["; ".join(map(str, s.allocation.stages)) for s in segments if s.allocation is not None]
        store = open_store(self.platform.settings.store_url())
        reads = prove(self.platform.control.reads("disturbed"), done.facts.dataset_samples, store)
        wanted, found = dict(read_curve(curves["undisturbed"])), read_curve(curves["disturbed"])
        if wanted.keys() != {step for step, _ in found} or len(wanted) != steps:
            raise RuntimeError(f"of {steps} steps, {sorted(wanted)} and {sorted(dict(found))} have a loss")
        return Disturbed(
            stages=tuple([held[0], *(b for a, b in pairwise(held) if a != b)]), killed=killed, reads=tuple(reads),
            attempts=sum(segment.attempt for segment in segments), steps=len(found),
            worst=max(abs(loss - wanted[step]) / abs(wanted[step]) for step, loss in found),
        )  # fmt: skip

    def refusal(self) -> str:
        """What a job is told whose table does not fit where it is put."""
        _, accelerator = real_jobs.names()
        self._submit(real_jobs.spec("refused", 4, (accelerator,), rows=real_jobs.LARGE_ROWS))
        status = eventually(lambda: self._ended("refused"), ENDED_SECONDS, "the job with a large table ends")
        if status.state is not JobState.FAILED or not status.error:
            raise RuntimeError(f"a table of {real_jobs.LARGE_ROWS} rows was not refused: the job is {status.state}")
        return str(status.error)

    def airflow_states(self, names: tuple[str, ...], seconds: float) -> dict[str, str]:
        """Of the runs of `elastic_job`, evaluation and registration included."""

        def states() -> dict[str, str]:
            return {name: self.platform.run_state("elastic_job", name) for name in names}

        eventually(lambda: set(states().values()) <= {"success", "failed"}, seconds, "the jobs' runs in Airflow end")
        return states()

    def _submit(self, spec: Mapping[str, Any]) -> None:
        """On a pool that is empty, but for a rival's."""
        name = spec["name"]
        if spec.get("priority") is None:
            eventually(lambda: not any(node.held_slots for node in self.platform.control.nodes()), 120, "empty pool")
        path = self.platform.home / f"{name}.json"
        path.write_text(json.dumps(spec))
        profile = real_jobs.profile_file(spec, self.platform.home)
        more = [] if profile is None else ["--placement-profile", str(profile)]
        self.platform.elastic("jobs", "submit", str(path), *more, "--id", name)
        self._say(f"{name} is submitted")

    def _trains(self, name: str, steps: int) -> JobStatus:
        """Once it has taken so many steps in all, and holds slots."""

        def look() -> JobStatus | None:
            status = self._job(name)
            if status.state is not JobState.ACTIVE:
                raise RuntimeError(f"job {name} is {status.state}: {status.error}")
            return status if status.step >= steps and status.allocation is not None else None

        found: JobStatus = eventually(look, STARTED_SECONDS + 15 * steps, f"{name} takes {steps} steps")
        self._say(f"{name} is at step {found.step}: {stages_words(found)}")
        return found

    def _on_fewer(self, before: JobStatus) -> JobStatus | None:
        status = self._job(before.job_id)
        if status.allocation is None or before.allocation is None or status.segment_id == before.segment_id:
            return None
        return status if status.allocation.num_slots < before.allocation.num_slots else None

    def _kill(self, name: str) -> str:
        """The process on the job's first slot, a keeper of rows; in words."""
        status, group = self._job(name), self.platform.control.groups_of(name)[-1]
        assert status.allocation is not None
        first = status.allocation.slots[0]
        slot = f"{first.node}:{first.index}"
        workers = RunDir.of(self.platform.home, group.origin_epoch).require(WorkerProcesses).workers
        process = next(worker.process for worker in workers if worker.slot == slot)
        os.kill(process.pid, signal.SIGKILL)
        words = f"rank 0 on {slot}, at step {status.step}"
        self._say(f"killed: {words}")
        return words

    def _over(self, name: str) -> JobStatus:
        status: JobStatus = eventually(lambda: self._ended(name), ENDED_SECONDS, f"{name} ends")
        self._finished(status)
        self._say(f"{name} is done after {status.step} steps")
        return status

    def _ended(self, name: str) -> JobStatus | None:
        time.sleep(POLL_SECONDS)
        status = self._job(name)
        return status if status.state is not JobState.ACTIVE else None

    @staticmethod
    def _finished(status: JobStatus) -> None:
        if status.state is not JobState.FINISHED:
            raise RuntimeError(f"job {status.job_id} is {status.state}: {status.error}")

    def _job(self, name: str) -> JobStatus:
        return self.platform.control.job(name)

    def _steps(self, name: str) -> Iterator[Mapping[str, Any]]:
        """What its observations say; the first step of a start is in none."""
        engine = create_engine(read_secret(self.platform.settings, "ledger_url"))
        with engine.connect() as connection:
            yield from (row._asdict() for row in connection.execute(STEPS, {"job": name}))
        engine.dispose()

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {what}", flush=True)
