"""Placed jobs among the others: their bundles are further options, and their speeds come from the planner.

An ordinary job does nothing on a bundle, a placed one nothing on what is none of its own bundles; so the division over
types, and every rule above it, decide both kinds of jobs together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elastic_core.domain import JobView
from elastic_core.policy.base.options import Options
from elastic_core.policy.base.placed_jobs import PREDICTED_ERROR, Choice, Choices
from elastic_core.policy.horizon.outlook import Outlooks
from elastic_core.predict.speed import throughput
from elastic_core.predict.speed.throughput import Floats


@dataclass(frozen=True)
class PlacedOptions:
    """`of`: by row of a placed job, its choice at each option that it has."""

    of: Mapping[int, Mapping[int, Choice]]

    @staticmethod
    def among(jobs: Sequence[JobView], options: Options, choices: Choices) -> PlacedOptions:
        of = {}
        for row, job in enumerate(jobs):
            if job.job_id in choices:
                at = ((options.at(choice.bundle.counts), choice) for choice in choices[job.job_id])
                of[row] = {option: choice for option, choice in at if option is not None}
        return PlacedOptions(of)

    def choice(self, row: int, option: int) -> Choice | None:
        return self.of.get(row, {}).get(option)

    def errors(self, row: int, num_options: int) -> Floats:
        """One standard deviation of a placed job's throughput at each option, relative to it."""
        errors = np.full(num_options, PREDICTED_ERROR)
        for option, choice in self.of[row].items():
            if choice.reports:
                errors[option] = throughput.measured_error(choice.reports)
        return errors


def with_bundles(options: Options, choices: Choices) -> Options:
    return options.with_bundles(choice.bundle.counts for of_job in choices.values() for choice in of_job)


def with_placed(
    outlook: Outlooks, options: Options, jobs: Sequence[JobView], placed: PlacedOptions, remaining_work: Floats
) -> Outlooks:
    """The outlook over `options.alone`, widened to all options, with what placed jobs do there."""
    more = len(options.counts) - options.num_single
    if not more and not placed.of:
        return outlook
    rates = np.pad(outlook.work_rate, ((0, 0), (0, more)))
    seconds = np.pad(outlook.remaining_seconds, ((0, 0), (0, more)), constant_values=np.inf)
    batches = np.pad(outlook.batches, ((0, 0), (0, more)))
    for row, choices in placed.of.items():
        rates[row], seconds[row], batches[row] = 0.0, np.inf, jobs[row].limits.reference_batch
        for option, choice in choices.items():
            rates[row, option] = choice.speed
            seconds[row, option] = remaining_work[row] / choice.speed
    return replace(outlook, work_rate=rates, remaining_seconds=seconds, batches=batches)
