"""How many steps a job still needs at a batch, whichever way its work is counted."""

from __future__ import annotations

from math import isinf

from elastic_core.domain import JobView
from elastic_core.predict.efficiency import efficiency


def known_remaining(job: JobView) -> float:
    """Samples that it still needs: declared, else what its loss curve says; infinite where neither is known."""
    if job.total_samples is None and job.expected_samples is not None:
        return max(job.expected_samples - job.done_samples, 1.0)
    return job.remaining_samples


def remaining_steps(job: JobView, batch: int) -> float:
    """Undeclared work: as much again as was done, one step at least (Lindy's rule: the age tells the time to come)."""
    samples = job.remaining_samples
    if isinf(samples):
        samples = max(job.done_samples, batch)
    return samples / work_of_step(job, batch)


def work_of_step(job: JobView, batch: int) -> float:
    """Samples of the job's work that one step at this batch does."""
    return batch * efficiency(batch, job.limits.min_batch, job.noise_scale) if job.scale_invariant else batch
