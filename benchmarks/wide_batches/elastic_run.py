"""One training through random resizes and changes of batch, as the platform carries them out.

The workers are the product's: of every segment anew, in this process where it is one, else in processes of their own.
They restore the last boundary's checkpoint, train, measure the gradient noise and report it. Between segments the
number of workers and the batch are drawn from the run's seed, the batch among those that the job may have now:
`policy.base.batch_bound` over `snapshot.job_record`, fed with what the job itself has reported. Half of the draws take
the largest of them, as a busy pool would.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Literal

from benchmarks.wide_batches.subjects import RANGE, Rule, Subject
from elastic_core.domain import JobView, Observation, SegmentState
from elastic_core.policy.base.batch_bound import bounded
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.protocol.records import JobFacts
from elastic_core.protocol.trainer import Commit
from elastic_core.snapshot.job_record import JobRecord, OpenSegment, Submission, job_view
from elastic_core.snapshot.job_reports import measured
from elastic_core.spec import JobSpec
from elastic_core.spec.job import total_samples
from elastic_core.train.entry import job_facts
from elastic_core.train.process import worker
from tests.train import forked
from tests.train.job import Job
from tests.train.ledger import FolderLedger

SEGMENTS = 6  # in which a run reads about as many samples as its work has, unless work is progress
LEASE_SECONDS = 3600.0  # nobody else wants the slots, and a study may be stopped for a while
_PRELOADED = ["tests.train.preloaded", "examples.digits", "examples.tabular"]  # once, not in every worker


class Variant(StrEnum):
    BASE = "base"  # one segment, one worker, the base batch
    GROWN = "as the product grows it"
    WIDE = "wide, unbounded"  # any batch of the range, whatever was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """`noise_scale` is what the job had reported before it, `largest` the largest batch that it might have had."""

    slots: int
    batch: int
    largest: int
    noise_scale: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended. `metric` is the task's own, on held-out data."""

    metric: float
    mode: Literal["min", "max"]  # of the metric, which is better
    steps: int
    samples: int
    segments: tuple[Segment, ...]
    cpu_seconds: float  # of this process

    @property
    def mean_batch(self) -> float:
        return self.samples / self.steps

    @property
    def largest_batch(self) -> int:
        return max(segment.batch for segment in self.segments)


def spec_of(subject: Subject, rule: Rule, seed: int, **batch: Any) -> JobSpec:
    """The job as a user would submit it; what `batch` does not say is the product's default."""
    return JobSpec.model_validate(
        {
            "name": subject.name,
            "entry_point": subject.entry_point,
            "params": subject.params,
            "work": {"epochs": subject.epochs, "measure": rule.measure},
            "batch": {
                "min": subject.base, "max": RANGE * subject.base, "base": subject.base,
                "learning_rate_rule": rule.learning_rate, **batch,
            },
            "slots": {"min": 1, "max": 2},
            "checkpoints": {"interval_seconds": None},
            "seed": seed,
        }
    )  # fmt: skip


def train(spec: JobSpec, variant: Variant, folder: Path, *, workers: int = 1) -> Outcome:
    """`workers`: the most of a segment. Raises `RuntimeError` with the workers' logs when they fail."""
    started = time.process_time()
    facts = _facts(spec)
    work = total_samples(spec, facts.dataset_samples)
    job = Job(
        folder, entry=spec.entry_point, rows=facts.dataset_samples, total=work, params=spec.params,
        spec=spec.model_dump(exclude_unset=True), tasks="examples.*",
    )  # fmt: skip
    job.ledger.set(lease_seconds=LEASE_SECONDS)
    multiprocessing.set_forkserver_preload(_PRELOADED)
    rng = Random(f"{spec.name}/{spec.batch.learning_rate_rule}/{spec.work.measure}/{variant}/{spec.seed}")
    segments: list[Segment] = []
    commits: Sequence[Commit] = ()
    while not commits or not commits[-1].finished:
        view = known(spec, work, job.ledger.observations(), commits, segments[-1].batch if segments else None)
        segment = _drawn(view, variant, rng, workers)
        steps = None if variant == Variant.BASE else -(-work // (SEGMENTS * segment.batch))
        order = job.next_order(
            segment.slots, segment.batch, segment_steps=steps, lease_seconds=LEASE_SECONDS, heartbeat_seconds=1.0
        )
        codes = [_work_here(job, order)] if segment.slots == 1 else forked.join(job.start_order(order), seconds=600)
        if any(codes):
            raise RuntimeError(f"{segment} of {spec.name} ended with the exit codes {codes}:\n{job.logs()}")
        segments.append(segment)
        commits = job.ledger.commits()
    return Outcome(
        metric=commits[-1].metrics[facts.metric], mode="max" if facts.metric_mode == "max" else "min",
        steps=commits[-1].step, samples=commits[-1].samples,
        segments=tuple(segments), cpu_seconds=time.process_time() - started,
    )  # fmt: skip


def known(
    spec: JobSpec, work: int, reports: Sequence[Observation], commits: Sequence[Commit], last_batch: int | None
) -> JobView:
    """What a policy is shown of the job between two segments."""
    done = 0.0
    if commits:
        done = commits[-1].samples if commits[-1].progress is None else commits[-1].progress
    return job_view(
        JobRecord(
            job=Submission(
                job_id="job", name=spec.name, task=spec.entry_point, queue=spec.queue, priority=spec.priority,
                submitted_at=0.0, deadline=None, limits=spec.limits(), scale_invariant=spec.work.scale_invariant,
            ),
            total_samples=work,
            committed_samples=int(done),
            segment=OpenSegment(segment_id="job__seg", state=SegmentState.WAITING, created_at=0.0, asked_at=0.0),
            last_batch=last_batch,
            measured=measured(reports),
        )
    )  # fmt: skip


def _drawn(view: JobView, variant: Variant, rng: Random, workers: int) -> Segment:
    base = view.limits.reference_batch
    if variant == Variant.BASE:
        return Segment(slots=1, batch=base, largest=base, noise_scale=view.noise_scale)
    limits = view.limits if variant == Variant.WIDE else bounded(view).limits
    low, high = limits.min_batch, limits.max_batch
    batch = high if rng.random() < 0.5 else round(low * (high / low) ** rng.random())
    return Segment(slots=rng.randint(1, workers), batch=batch, largest=high, noise_scale=view.noise_scale)


def _work_here(job: Job, order: LaunchOrder) -> int:
    """The segment's only worker, in a thread of this process; its exit code. Its error is in the logs, too.

    On the main thread it would take the study's SIGTERM for a request to leave.
    """
    run_dir = job.write_order(order)
    log = logging.FileHandler(run_dir.log(0))
    logging.getLogger("elastic_core").addHandler(log)
    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(
                worker.main,
                ["--run-dir", str(run_dir.path), "--rank", "0"],
                connect=lambda token: FolderLedger(job.ledger.folder, token),
            ).result()
    finally:
        logging.getLogger("elastic_core").removeHandler(log)
        log.close()


def _facts(spec: JobSpec) -> JobFacts:
    module, name = spec.entry_point.split(":")
    return job_facts(getattr(import_module(module), name), spec)
