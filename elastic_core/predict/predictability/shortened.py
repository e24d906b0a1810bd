"""Runs as they would have been with a lower limit: more ends to learn from, each of which a real run went through.

A job with half the limit would have reported the same until there (learning rates of tasks do not depend on the
limit), and its predictability is another question, since it ends at another place of the curve. Only to learn from:
kinds of estimator are compared, and probabilities calibrated, with such runs among the others of a fold; whoever judges
a classifier asks it about whole runs alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from elastic_core.predict.predictability.hindsight import LEAST_REPORTS
from elastic_core.protocol.records import FinishedRun

LIMITS = (0.6, 0.4)  # of the work that the run did


def shortened(run: FinishedRun) -> Iterator[FinishedRun]:
    """The run with each of these limits; none of one that would have reported too little to be labelled."""
    for share in LIMITS:
        losses = tuple(report for report in run.losses if report[0] <= share * run.work_done)
        if len(losses) < LEAST_REPORTS:
            continue
        end = int(losses[-1][0])
        yield replace(
            run,
            losses=losses,
            metrics=tuple(report for report in run.metrics if report[0] <= end),
            work=end,
            description=replace(run.description, most_samples=end),
        )
