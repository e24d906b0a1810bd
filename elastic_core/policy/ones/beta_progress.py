"""How much work ONES believes a job to have left: progress is Beta distributed (Bian et al., SC 2021, section 3.3).

    progress ~ Beta(passes done, passes expected, at least one)        left = done x (1 / progress - 1)

A pass is the `PASSES`-th part of the work that is expected. The paper fits what is expected on finished jobs; here that
is what was declared, else what the loss curve says, else as much again as was done. Declared work of the predictable
class is taken as it is. One draw a job and pass, seeded by both: a job is not ranked anew by every decision.
"""

from __future__ import annotations

from random import Random

from elastic_core.domain import JobView
from elastic_core.policy.base.remaining_work import declaration_is_trusted, expected_remaining

PASSES = 20


def work_of_pass(job: JobView) -> float:
    """In the unit of the job's work; at least one."""
    return max((job.done_samples + expected_remaining(job)) / PASSES, 1.0)


def remaining_work(job: JobView) -> float:
    """In the unit of the job's work. 0 for a job of which nothing is known: such jobs are tried first."""
    if job.total_samples is not None and declaration_is_trusted(job):
        return float(job.remaining_samples)
    if not job.done_samples:
        return expected_remaining(job)
    unit = work_of_pass(job)
    done, expected = job.done_samples / unit, max(expected_remaining(job) / unit, 1.0)
    progress = Random(f"{job.job_id}/{int(done)}").betavariate(max(done, 1.0), expected)
    return job.done_samples * (1.0 / max(progress, 1e-6) - 1.0)
