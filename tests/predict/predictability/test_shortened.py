"""A run as if its limit had been lower: what it had reported until then, and no more."""

from __future__ import annotations

from dataclasses import replace

from elastic_core.predict.predictability.hindsight import LEAST_REPORTS
from elastic_core.predict.predictability.shortened import LIMITS, shortened
from elastic_core.protocol.records import FinishedRun
from tests.predict.forecasts.builders import a_run


def a_long_run() -> FinishedRun:
    """160 reports up to 8,000 samples, evaluated after each thousand."""
    run = a_run(1)
    return replace(
        run,
        losses=tuple((50 * k, 2.0 / k) for k in range(1, 161)),
        metrics=tuple((1000 * k, 1.0 / k) for k in range(1, 9)),
        work=8000,
    )


def test_it_ends_at_its_limit_with_what_was_reported_until_then() -> None:
    run = a_long_run()
    found = list(shortened(run))
    assert [short.work_done for short in found] == [int(share * 8000) for share in LIMITS]
    for short in found:
        assert short.description == replace(run.description, most_samples=short.work_done)
        assert short.losses == run.losses[: len(short.losses)]
        assert short.losses[-1][0] == short.work_done
        assert short.metrics == tuple(report for report in run.metrics if report[0] <= short.work_done)


def test_a_run_with_few_reports_has_no_shorter_one() -> None:
    run = replace(a_long_run(), losses=a_long_run().losses[: LEAST_REPORTS + 1], work=50 * (LEAST_REPORTS + 1))
    assert list(shortened(run)) == []
