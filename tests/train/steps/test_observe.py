"""What reports say of step times where an exchange is not at every step."""

from __future__ import annotations

import pytest

from elastic_core.domain import Allocation, Layout, Observation, Slot
from elastic_core.snapshot.job_reports import profile
from elastic_core.spec.parts.job_comm import Comm
from elastic_core.train.steps.observe import Observer, StepFacts

STEP, AVERAGE, INTERVAL = 1.0, 8.0, 8  # an average each 8 steps: a step takes 2 s in truth


def observer(comm: str, interval: int = 1, before: Observer | None = None) -> Observer:
    slots = (Slot("a", 0, "cpu"), Slot("b", 0, "cpu"))
    allocation = Allocation(slots=slots, global_batch=16, layout=Layout(data=2), comm=comm)
    return Observer(allocation, 1000, interval, before)


def facts(step: int, seconds: float, wait: float) -> StepFacts:
    return StepFacts(
        step=step, samples=16 * step, batch_samples=16, local_batch=8, accumulation=1, step_seconds=seconds,
        sync_seconds=wait, loss=1.0, learning_rate=0.1, noise=None, memory_bytes=0,
    )  # fmt: skip


def reports(watching: Observer, steps: range, every: int) -> list[Observation]:
    """Reports of so many steps each; averages are at the multiples of the interval."""
    made = []
    for step in steps:
        average = AVERAGE if step % INTERVAL == 0 else 0.0
        watching.add(facts(step, STEP + average, average))
        if step % every == 0:
            made.append(watching.take())
    return [report for report in made if report is not None]


@pytest.mark.parametrize("every", [1, 3, 8, 20])
@pytest.mark.parametrize("comm", ["local_sgd", "diloco", "async_average"])
def test_the_scheduler_is_told_what_averages_take_however_few_steps_a_report_has(comm, every):
    (point,) = profile(reports(observer(comm, INTERVAL), range(1, 121), every))
    assert point.step_seconds == pytest.approx(STEP + AVERAGE / INTERVAL)
    assert point.sync_seconds == pytest.approx(AVERAGE / INTERVAL)


def test_a_report_before_the_first_whole_interval_has_no_times_and_counts_for_no_profile():
    early = reports(observer("local_sgd", INTERVAL), range(1, 7), 3)
    assert [(report.step, report.step_seconds, report.sync_seconds) for report in early] == [(3, 0, 0), (6, 0, 0)]
    assert all(report.samples_per_second > 0 for report in early)
    assert profile(early) == ()


def test_an_interval_that_is_longer_than_a_segment_ends_in_the_next_one_of_the_same_processes():
    first = observer("local_sgd", INTERVAL)
    assert [report.step_seconds for report in reports(first, range(1, 7), 3)] == [0.0, 0.0]
    second = observer("local_sgd", INTERVAL, before=first)
    assert [report.step_seconds for report in reports(second, range(7, 13), 3)] == [2.0, 2.0]


def test_one_slow_step_counts_for_little_where_all_steps_exchange():
    watching = observer("allreduce")
    for step in range(1, 13):
        watching.add(facts(step, 30.0 if step == 7 else STEP, 0.1))
    report = watching.take()
    assert report is not None
    assert (report.step_seconds, report.sync_seconds) == (STEP, 0.1)


def test_only_algorithms_that_average_at_an_interval_have_one():
    comm = Comm(algorithm="local_sgd", interval=32)
    assert [comm.steps_of(name) for name in ("local_sgd", "decentralized", "allreduce")] == [32, 1, 1]
    assert Comm(algorithm="auto", allow="averaging").steps_of("diloco") == 8
