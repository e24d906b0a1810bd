"""The simulator's word on the jobs of a live run, told what no policy decides.

That is: when each job was recorded, where the unknown ends were, what was forecast of them first, and how long pauses
last on this machine. Submissions and starts are processes on the cores that training uses, so that they take longer
when there are many, which is when a policy has most to decide. So a job arrives in the simulator when it was recorded,
as in a replay of any trace; and a start lasts so long alone, and so much longer for every other that is under way
(`measured_pauses`: by least squares over the pauses of all runs, not over how long jobs took). Resizes in place are
told apart.

`simulated_by_means` is how it was done at first: each submission and each pause as long as their means.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import nnls
from scipy.stats import spearmanr

from benchmarks.live.contenders import CONTENDERS
from benchmarks.live.live_workload import LiveWorkload, simulated
from elastic_core.domain import WorkForecast
from elastic_core.policy import registry
from elastic_core.predict.work.work_left import PROBABILITIES
from elastic_core.sim.engine.engine import Options, Pauses, simulate

DRAWS = 5
Outcome = Mapping[str, Any]


def measured_pauses(outcomes: Iterable[Outcome]) -> Pauses:
    """What starts and resizes cost on this machine, over all of these runs."""
    rows: list[tuple[float, float]] = []
    seconds: list[float] = []
    in_place: list[float] = []
    for outcome in outcomes:
        starts = [pause for pause in outcome["pauses"] if not pause["in_place"]]
        rows += [(1.0, float(_others(pause, starts))) for pause in starts]
        seconds += [_seconds(pause) for pause in starts]
        in_place += [_seconds(pause) for pause in outcome["pauses"] if pause["in_place"]]
    if not rows:
        return Pauses(start=0.0)
    (alone, each), _ = nnls(np.asarray(rows), np.asarray(seconds))
    return Pauses(float(alone), float(each), statistics.fmean(in_place or [0.0]))


def _others(pause: Mapping[str, Any], starts: Sequence[Mapping[str, Any]]) -> int:
    """Starts that were under way when this one began."""
    return sum(other["since"] < pause["since"] < other["until"] for other in starts)


def _seconds(pause: Mapping[str, Any]) -> float:
    return float(pause["until"] - pause["since"])


Draws = Sequence[Mapping[str, float]]  # completion seconds by job, each


def simulate_as_run(loaded: LiveWorkload, outcome: Outcome, pauses: Pauses) -> Draws:
    """`DRAWS` of the noise that measurements have there: one alone moves a policy's mean by several per cent."""
    return _draws(loaded, outcome, submission_seconds(outcome), pauses)


def mean_of(draws: Draws) -> dict[str, float]:
    """By job."""
    return {name: statistics.fmean(draw[name] for draw in draws) for name in draws[0]}


def draws_agree(draws: Draws) -> float:
    """Rank correlation of jobs between a draw and the mean of the others, on average: a live run, which is one draw,
    can agree no better with what is simulated, were the simulator perfect."""
    correlations = []
    for one in draws:
        others = mean_of([draw for draw in draws if draw is not one])
        correlations.append(float(spearmanr(list(one.values()), [others[name] for name in one]).statistic))
    return statistics.fmean(correlations)


def simulated_by_means(loaded: LiveWorkload, outcome: Outcome) -> dict[str, float]:
    """As `simulate_as_run`, but for submissions, starts and resizes, which all take what they took in the mean."""
    mean = statistics.fmean(submission_seconds(outcome).values())
    pause = statistics.fmean([_seconds(pause) for pause in outcome["pauses"]] or [0.0])
    return mean_of(_draws(loaded, outcome, {job.name: mean for job in loaded.jobs}, Pauses(pause, 0.0, pause)))


def mean_if_all_ends_were_known(loaded: LiveWorkload, outcome: Outcome, pauses: Pauses) -> float:
    """Mean completion in the simulator if every job's work had been declared: no predictor of ends can be worth more to
    this policy on these jobs."""
    known = _draws(loaded, outcome, submission_seconds(outcome), pauses, declared=True)
    return statistics.fmean(mean_of(known).values())


def submission_seconds(outcome: Outcome) -> dict[str, float]:
    """By job, until its first segment asked for slots; of one that never did the others' mean. Runs that were kept
    before say when it was recorded, which is some seconds earlier."""
    asked = {job["name"]: job.get("asked_at") or job["submitted_at"] for job in outcome["jobs"]}
    seconds = {job["name"]: asked[job["name"]] - job["requested_at"] for job in outcome["jobs"] if asked[job["name"]]}
    return {job["name"]: seconds.get(job["name"], statistics.fmean(seconds.values())) for job in outcome["jobs"]}


def first_forecasts(outcome: Outcome) -> dict[str, WorkForecast]:
    """By job whose end nobody knew, what its first slots were decided by. Runs that were kept before say no medians:
    the simulator has the stated prior then."""
    return {
        one["job"]: WorkForecast(
            probabilities=PROBABILITIES,
            totals=(one["work_low"], one["work_median"], one["work_high"]),
            source=one["work_source"],
        )
        for one in outcome.get("forecasts", ())
        if one["part"] == 0.0 and one.get("work_median") is not None
    }


def _draws(
    loaded: LiveWorkload, outcome: Outcome, submissions: Mapping[str, float], pauses: Pauses, *, declared: bool = False
) -> list[dict[str, float]]:
    """Completion seconds by job, once a draw."""
    contender = CONTENDERS[outcome["contender"]]
    of_policy = contender.workload(loaded)
    recorded = [replace(job, arrival=job.arrival + submissions[job.name]) for job in of_policy.jobs]
    ends = {job["name"]: float(job["samples"]) for job in outcome["jobs"] if job["samples"]}
    unknown = {job.name: ends[job.name] for job in loaded.jobs if job.target_loss is not None and job.name in ends}
    predictors = contender.settings.get("use_predictors", True)
    forecasts = first_forecasts(outcome) if predictors else {}
    workload = simulated(replace(of_policy, jobs=tuple(recorded)), pauses.start, unknown, forecasts)
    if declared:
        workload = replace(workload, jobs=tuple(replace(job, declared=True) for job in workload.jobs))
    policy = registry.get(contender.policy)
    told = Options(timeline=False, pauses=pauses, predictors=predictors)
    results = [simulate(workload, loaded.nodes, policy, replace(told, seed=seed)) for seed in range(DRAWS)]
    return [
        {job.job_id: submissions[job.job_id] + (job.completion_seconds or 0.0) for job in result.jobs}
        for result in results
    ]
