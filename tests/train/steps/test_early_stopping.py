"""When a job with patience ends: by its metric at the end of each pass, whatever the layout and the segments."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.protocol.records import JobFacts
from elastic_core.train.steps.early_stopping import Evaluations
from tests.train.job import Job

ROWS = 96
values = st.lists(st.floats(-10, 10) | st.just(float("nan")), min_size=1, max_size=20)


@given(values, st.sampled_from(["min", "max"]))
def test_passes_since_the_best_are_those_that_were_not_better(seen, mode):
    state = Evaluations()
    for passes, value in enumerate(seen, 1):
        state = state.evaluated(value, passes, mode)
    numbers = [value for value in seen if value == value]
    best = (min if mode == "min" else max)(numbers, default=None)
    assert state.best == best
    assert state.passes == len(seen)
    assert state.since_best == (len(seen) if best is None else len(seen) - 1 - seen.index(best))


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 64)), min_size=1, max_size=10))
def test_the_loss_of_a_pass_is_the_mean_over_its_samples_and_goes_through_a_checkpoint(steps):
    state = Evaluations()
    for loss, samples in steps:
        state = state.trained(loss, samples)
    again = Evaluations.from_scalars(json.loads(json.dumps(state.to_scalars())))
    assert again == state
    assert again.mean_loss == pytest.approx(sum(a * b for a, b in steps) / sum(b for _, b in steps))
    assert asdict(again.evaluated(1.0, 1, "min"))["loss_samples"] == 0  # the next pass begins anew
    assert Evaluations.from_scalars({}) == Evaluations()


def a_job(new_job, name: str, patience: int = 1, **more) -> Job:
    params = {"rows": ROWS, "dropout": 0.0, "learning_rate": 0.03, **more.pop("params", {})}
    work = {"samples": 200 * ROWS, "patience": patience, **more.pop("work", {})}
    return new_job(name, entry="Regression", rows=ROWS, total=200 * ROWS, params=params, spec={"work": work, **more})


def end_of(job: Job) -> tuple[int, int]:
    (*_, last) = job.ledger.commits()
    assert last.finished
    assert last.samples < 200 * ROWS
    return last.step, last.samples


@pytest.mark.parametrize("metric", ["held_out", "loss"])  # the second is what the task does not evaluate
def test_the_end_is_the_same_for_any_number_of_workers_and_any_segments(new_job, metric):
    facts = JobFacts(dataset_samples=ROWS, metric=metric)
    ends = {}
    for world in (1, 2):
        job = a_job(new_job, f"{metric}-{world}")
        assert job.run(world, 48, facts=facts) == [0] * world
        ends[world] = end_of(job)
        ended = "ended by work.patience: nothing was better than "
        assert [note.startswith(ended) for note in job.ledger.commits()[-1].notes].count(True) == 1
    cut = a_job(new_job, f"{metric}-cut")
    while not (cut.ledger.commits() and cut.ledger.commits()[-1].finished):
        assert cut.run(1, 48, segment_steps=5, facts=facts) == [0]
    assert ends[1] == ends[2] == end_of(cut)
    assert ends[1][1] % ROWS == 0  # at the end of a pass


def test_more_patience_trains_no_shorter(new_job):
    facts = JobFacts(dataset_samples=ROWS, metric="held_out")
    ends = []
    for patience in (1, 3):
        job = a_job(new_job, f"patience-{patience}", patience)
        assert job.run(1, 96, facts=facts) == [0]
        ends.append(end_of(job)[0])
    assert ends[1] >= ends[0] + 2


def test_a_metric_that_is_not_evaluated_is_the_users_error(new_job):
    job = a_job(new_job, "unknown")
    assert job.run(1, 96, facts=JobFacts(dataset_samples=ROWS, metric="accuracy")) == [10]
    assert "metric 'accuracy', which its evaluation does not give: it gives ['held_out']" in job.error()["error"]
