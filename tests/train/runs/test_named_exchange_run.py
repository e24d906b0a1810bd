"""Jobs that name an exchange tell once a start what it saves, and take every step by it."""

from __future__ import annotations

import pytest

BATCH = 12


@pytest.mark.parametrize("algorithm", ["bytegrad", "decentralized"])
def test_a_named_exchange_is_compared_with_the_exact_sum_once_a_start(new_job, algorithm):
    job = new_job(algorithm, spec={"comm": {"algorithm": algorithm}}, total=600)
    assert job.run(2, BATCH, segment_steps=20) == [0, 0], job.logs()
    assert job.run(1, BATCH, segment_steps=10) == [0], job.logs()
    assert job.run(2, BATCH) == [0, 0], job.logs()
    reports = job.ledger.observations()
    assert {report.comm for report in reports if report.num_slots > 1} == {algorithm}
    choices = [report.choice for report in reports if report.choice is not None]
    assert [(choice.algorithm, choice.num_slots) for choice in choices] == [(algorithm, 2)] * 2, "one slot has none"
    for choice in choices:
        own, exact = choice.figures
        assert (own.algorithm, exact.algorithm) == (algorithm, "allreduce")
        assert own.measured_seconds > 0
        assert exact.measured_seconds is None
        assert exact.predicted_seconds > 0
        assert {cost.algorithm for cost in choice.needs.costs} == {algorithm, "allreduce"}


@pytest.mark.parametrize(
    ("cut_by", "told"),
    [({}, 1), ({"checkpoints": {"interval_seconds": None, "interval_steps": 6}}, 0), ({"work": {"patience": 9}}, 0)],
    ids=["nothing", "a checkpoint", "an evaluation after the eighth step"],
)
def test_of_an_average_two_intervals_that_nothing_cuts_tell_what_it_saves(new_job, cut_by, told):
    spec = {"comm": {"algorithm": "local_sgd"}, **cut_by}
    job = new_job(spec={**spec, "work": {"samples": 20 * BATCH, **cut_by.get("work", {})}})
    assert job.run(2, BATCH) == [0, 0], job.logs()
    assert sum(report.choice is not None for report in job.ledger.observations()) == told


def test_an_exact_job_is_compared_with_nothing(new_job):
    job = new_job("exact")
    assert job.run(2, BATCH) == [0, 0], job.logs()
    assert all(report.choice is None for report in job.ledger.observations())
