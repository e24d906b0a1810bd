"""A job that diverges under an exchange that is not exact gets the exact sum from then on, whatever happens next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import ExactLoss, ExchangeCost, ExchangeFigures, ExchangeNeeds, JobState, SegmentState
from elastic_core.protocol.events import EventKind
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.spec.admitted_layouts import Admitted
from tests.builders import FACTS, FakeClock, Life, a_cluster, a_commit, a_control, a_spec, an_observation
from tests.ledger_engines import heard

WHY = "the losses of steps 8 to 9 are not finite, under bytegrad"


def a_life(control: LedgerControl, job_id: str = "job-a", comm: dict[str, Any] | None = None, **spec: object) -> Life:
    comm = {"algorithm": "bytegrad"} if comm is None else comm
    facts = replace(FACTS, layouts=Admitted(max_pipeline=2))
    control.submit(job_id, a_spec(slots=(2, 2), comm=comm, **spec), facts)
    return Life(control, control.trainer, job_id)


def diverged(life: Life) -> LaunchOrder:
    """The order of the attempt after one that committed step 5 and diverged."""
    order = life.start()
    life.trainer(order.token).commit(a_commit(order, 5))
    life.leave(order, "diverged", WHY)
    return life.start()


def test_the_next_lease_carries_the_exact_sum_and_says_why(control: LedgerControl) -> None:
    life = a_life(control)
    order = diverged(life)
    assert order.allocation.comm == "allreduce"
    assert [record.step for record in order.restore.candidates] == [5]
    job = control.job("job-a")
    assert job.exchange_fallback is not None
    assert (job.exchange_fallback.algorithm, job.exchange_fallback.step) == ("bytegrad", 5)
    assert job.exchange_fallback.reason == WHY
    assert job.notes == (f"allreduce, for good: training diverged under bytegrad and went on from step 5: {WHY}",)
    segment = control.segment(order.segment_id)
    assert (segment.attempt, segment.state) == (1, SegmentState.RUNNING)
    (event,) = [event for event in control.feed.events(0) if event.kind is EventKind.EXCHANGE_FELL_BACK]
    assert event.payload["fallback"]["algorithm"] == "bytegrad"
    (view,) = control.snapshot().jobs
    assert view.limits.comm == "allreduce", "policies and models of its speed see what it has"


def test_what_was_told_of_exchanges_before_counts_for_no_decision_after(control: LedgerControl) -> None:
    life = a_life(control)
    order = life.start()
    held = order.allocation
    cost = ExchangeCost(algorithm="bytegrad", sent_bytes=(1.0, 2.0, 3.0), rounds=(2.0, 2.0, 2.0))
    needs = ExchangeNeeds(num_slots=held.num_slots, num_nodes=held.num_nodes, type="cpu", costs=(cost,))
    figures = (ExchangeFigures(algorithm="bytegrad", measured_seconds=0.5),)
    trainer = control.trainer(order.token)
    trainer.observe([an_observation(4, order, comm="bytegrad", exchanges=figures, exchange_needs=needs)])
    assert control.snapshot().jobs[0].exchange == needs
    trainer.commit(a_commit(order, 5))
    life.leave(order, "diverged", WHY)
    assert control.snapshot().jobs[0].exchange is None


def test_boundaries_retries_revivals_and_rollbacks_keep_it(control: LedgerControl) -> None:
    life = a_life(control)
    order = diverged(life)
    handed_over = control.trainer(order.token).commit(a_commit(order, 8, final=True)).order
    assert handed_over is not None
    life.leave(handed_over, "infrastructure", "SIGKILL")
    again = life.start()
    life.leave(again, "user_error", "KeyError: 'x'")
    control.revive("job-a")
    revived = life.start()
    assert {o.allocation.comm for o in (handed_over, again, revived)} == {"allreduce"}


def test_it_happens_once_and_never_to_a_lease_for_the_exact_sum(control: LedgerControl) -> None:
    life = a_life(control)
    life.leave(diverged(life), "diverged", "again")
    assert [event.kind for event in control.feed.events(0)].count(EventKind.EXCHANGE_FELL_BACK) == 1
    exact = a_life(control, "job-b", comm={})
    exact.leave(exact.start(), "diverged", "it cannot")
    assert control.job("job-b").exchange_fallback is None
    assert control.job("job-b").notes == ()


def test_it_is_no_failure_of_a_job_that_may_have_none(ledger_url: str, tmp_path: Path, clock: FakeClock) -> None:
    control = a_control(ledger_url, tmp_path, clock, max_attempts=1)
    control.set_cluster(a_cluster())
    diverged(a_life(control))
    assert control.job("job-a").state is JobState.ACTIVE
    control.close()


def observed(control: LedgerControl, life: Life, losses: list[float], **more: object) -> LaunchOrder:
    order = life.start()
    reports = [an_observation(step, order, loss=loss, **more) for step, loss in enumerate(losses, start=1)]
    control.trainer(order.token).observe(reports)
    return order


def finished(control: LedgerControl, life: Life, losses: list[float]) -> None:
    order = observed(control, life, losses)
    control.trainer(order.token).commit(a_commit(order, len(losses), finished=True))
    life.leave(order, "finished")


@contextmanager
def looked_up_under_the_lock(control: LedgerControl) -> Iterator[list[str]]:
    """Statements that read reports while the row is locked by which all commits and decisions wait for each other."""
    locked, found = False, []

    def watch(_: object, __: object, statement: str, *___: object) -> None:
        nonlocal locked
        locked = locked or ("FROM scheduling" in statement and "FOR UPDATE" in statement)
        if locked and "FROM observations" in statement:
            found.append(statement)

    def over(_: object) -> None:
        nonlocal locked
        locked = False

    engine = control._ledger._engine
    with heard(engine, "before_cursor_execute", watch), heard(engine, "commit", over):
        yield found


FALLING = [5.0 / step for step in range(1, 21)]


def test_an_order_tells_what_an_exact_run_of_the_same_task_and_parameters_would_lose(control: LedgerControl) -> None:
    finished(control, a_life(control, "exact", comm={}), FALLING)
    finished(control, a_life(control, "other", comm={}, params={"width": 64}), [9.0] * 20)
    known = a_life(control, "job-a").start().exact_loss
    assert known.source == "exact, under the exact sum"
    assert 0.2 < (known.limit(200) or 0.0) < 4.0, "above what it came to, below where it began"
    assert a_life(control, "job-b", comm={}).start().exact_loss == ExactLoss()


def test_a_run_that_was_exact_in_its_warm_up_alone_is_no_exact_run(control: LedgerControl) -> None:
    finished(control, a_life(control, "exact", comm={}), FALLING)
    finished(control, a_life(control, "warmed-up", comm={"algorithm": "onebit_adam"}), [9.0] * 20)
    assert a_life(control, "job-a").start().exact_loss.source == "exact, under the exact sum"


@pytest.mark.parametrize(("comm", "source"), [("allreduce", "its own steps so"), ("bytegrad", "")])
def test_without_one_it_is_what_the_job_itself_lost_under_the_exact_sum(
    control: LedgerControl, comm: str, source: str
) -> None:
    life = a_life(control, comm={"algorithm": "auto", "allow": "lossy"})
    life.leave(observed(control, life, FALLING, comm=comm), "infrastructure")
    known = life.start().exact_loss
    assert (known.first, known.source) == (5.0, source)
    assert bool(known.limits) == bool(source)


def test_its_loss_is_forecast_from_all_of_its_work_however_often_it_reported(control: LedgerControl) -> None:
    life = a_life(control, "exact", comm={}, work={"samples": 100_000})
    order, done = life.start(), [*range(5, 10_500, 5), *range(11_000, 100_000, 500)]
    reports = [an_observation(n, order, samples=at, loss=5.0 - 4e-5 * at) for n, at in enumerate(done, 1)]
    for first in range(0, len(reports), 1000):
        control.trainer(order.token).observe(reports[first : first + 1000])
    control.trainer(order.token).commit(a_commit(order, len(done), samples=100_000, finished=True))
    life.leave(order, "finished")
    known = a_life(control, "job-a", work={"samples": 100_000}).start().exact_loss
    assert known.source == "exact, under the exact sum"
    assert (known.limit(99_000) or 9.0) < 4.0, "of the first 2,000 reports none was below 4.6"


def test_where_its_processes_go_on_they_are_told_the_same(control: LedgerControl) -> None:
    """What takes long to find out is looked up before the lock that all commits wait for."""
    life = a_life(control, comm={"algorithm": "auto", "allow": "lossy"})
    order = observed(control, life, FALLING, comm="allreduce")
    with looked_up_under_the_lock(control) as under_the_lock:
        answer = control.trainer(order.token).commit(a_commit(order, 20, final=True))
    assert answer.order is not None
    assert answer.order.exact_loss.source == "its own steps so"
    assert answer.order.exact_loss == control.launch_order(answer.order.segment_id).exact_loss
    assert under_the_lock == []


def a_life_in_stages(control: LedgerControl, job_id: str = "job-a") -> Life:
    return a_life(control, job_id, comm={"stage_ratio": 8}, layouts={"pipeline": [2]})


def test_after_a_fallback_stages_send_each_other_all_and_the_spec_stays(control: LedgerControl) -> None:
    life = a_life_in_stages(control)
    before = life.start()
    assert (before.allocation.layout.pipeline, before.spec.comm.stage_ratio) == (2, 8)
    control.trainer(before.token).commit(a_commit(before, 5, layout=before.allocation.layout))
    life.leave(before, "diverged", WHY)
    order = life.start()
    assert (order.allocation.layout.pipeline, order.spec.comm.stage_ratio) == (2, None)
    job = control.job("job-a")
    assert job.spec.comm.stage_ratio == 8
    assert job.exchange_fallback is not None
    assert (job.exchange_fallback.algorithm, job.exchange_fallback.step) == ("stage_ratio", 5)
    words = f"stages send each other all, for good: training diverged under stage_ratio and went on from step 5: {WHY}"
    assert job.notes == (words,)
    life.leave(order, "diverged", "again")
    assert [event.kind for event in control.feed.events(0)].count(EventKind.EXCHANGE_FELL_BACK) == 1


def test_an_exact_run_is_one_whose_stages_sent_each_other_all(control: LedgerControl) -> None:
    finished(control, a_life_in_stages(control, "less"), FALLING)
    life = a_life_in_stages(control)
    life.leave(observed(control, life, FALLING), "infrastructure")
    known = life.start().exact_loss
    assert (known.first, known.limits, known.source) == (5.0, (), "")
    control.cancel("job-a", "enough")
    finished(control, a_life(control, "exact", comm={}, layouts={"pipeline": [2]}), FALLING)
    assert a_life_in_stages(control, "job-b").start().exact_loss.source == "exact, under the exact sum"
