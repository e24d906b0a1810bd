"""Workloads of which a share cannot be predicted, and what policies are told about them.

Everybody is told the same: an amount of work that is left (a declaration, or the fit to a loss curve), and the word of
a classifier. Of a predictable job the first is right within a few per cent. Of an unpredictable one it is wrong by a
factor that is drawn anew every tenth of the run, as a fit to a curve that does not follow its form jumps about: too
little as often as too much. The classifier knows nothing of that factor. It errs on some jobs when they are submitted,
and is put right by the run itself, as a classifier is that is shown the losses so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from elastic_core.sim.ground_truth.workload import SimJob, Workload

TENTHS = tuple(step / 10 for step in range(10))


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionErrors:
    """How wrong what policies are told may be. Errors are spreads of the logarithm of (told / true remaining work)."""

    predictable_error: float = 0.05
    unpredictable_error: float = 1.5  # about a factor of 4.5 either way, and one job in twenty beyond 20
    classifier_right: float = 0.92  # share of jobs at submission; AUC 0.94 on AITurbo's own data is about that
    corrected_after: float = 0.25  # share of its run from which on a job is told apart without error


def with_unpredictable_share(
    workload: Workload, share: float, seed: int, errors: PredictionErrors | None = None
) -> Workload:
    """The same jobs, `share` of them (rounded) unpredictable, chosen by the seed."""
    chosen = Random(f"mix/{seed}").sample(workload.jobs, round(share * len(workload.jobs)))
    unpredictable = {job.job_id for job in chosen}
    errors = errors or PredictionErrors()
    jobs = tuple(_with_predictions(job, job.job_id in unpredictable, errors, seed) for job in workload.jobs)
    return Workload(name=f"{workload.name}, {share:.0%} unpredictable", jobs=jobs)


def _with_predictions(job: SimJob, unpredictable: bool, errors: PredictionErrors, seed: int) -> SimJob:
    rng = Random(f"told/{seed}/{job.job_id}")
    correct = rng.random() < errors.classifier_right
    certainty = rng.uniform(0.6, 0.98)
    if unpredictable:
        estimates = tuple((since, rng.lognormvariate(0.0, errors.unpredictable_error)) for since in TENTHS)
    else:
        estimates = ((0.0, rng.lognormvariate(0.0, errors.predictable_error)),)
    probabilities = (1.0 - certainty, certainty)
    return replace(
        job,
        estimates=estimates,
        predictable=probabilities[correct != unpredictable],
        turns_predictable=None if correct else (errors.corrected_after, probabilities[not unpredictable]),
    )


def shuffled(workload: Workload, seed: int) -> Workload:
    """The same jobs and the same times of submission, in another order; seed 0 is the workload itself."""
    if seed == 0:
        return workload
    times = [job.submitted_at for job in workload.jobs]
    order = list(workload.jobs)
    Random(f"shuffle/{seed}").shuffle(order)
    width = len(str(len(order)))
    jobs = tuple(
        replace(job, submitted_at=at, job_id=f"job-{place:0{width}d}")
        for place, (job, at) in enumerate(zip(order, times, strict=True), start=1)
    )
    return Workload(name=f"{workload.name}, shuffled by {seed}", jobs=jobs)
