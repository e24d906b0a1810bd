"""What a job's own code tells of itself may be any number: those that no job needs are refused in words, and one that
the ledger holds from before is no reason for the other jobs to stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from math import inf, nan
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from sqlalchemy import create_engine, text

from elastic_core.control.number_checks import check_numbers
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import (
    ExchangeFigures,
    Layout,
    Link,
    Observation,
    PlacedStage,
    SegmentState,
    Slot,
)
from elastic_core.domain.number_ranges import OF_THE_MODEL
from elastic_core.errors import UserError
from elastic_core.policy.base.queue import as_they_stand
from elastic_core.protocol.calls import trainer_methods
from elastic_core.protocol.process_groups import ExitReport, LaunchOrder
from elastic_core.protocol.trainer import Commit, Heartbeat
from tests.builders import FACTS, FakeClock, Life, a_beat, a_commit, a_spec, an_observation
from tests.control.conftest import Plane
from tests.policy.builders import A_COST, told_costs

BY_PROGRESS = {"work": {"samples": 10_000, "measure": "progress"}}
HUGE = 10**30


@pytest.mark.parametrize(
    "odd",
    [{"progress": nan}, {"progress": inf}, {"progress": -1.0}, {"gain": 1e-300}, {"gain": 1e300}, {"step": -1},
     {"samples": HUGE}, {"at": nan}, {"at": 1e308}, {"pids": (HUGE,)}],
    ids=str,
)  # fmt: skip
def test_an_odd_number_of_a_heartbeat_is_refused_in_words(plane: Plane, odd: dict[str, Any]) -> None:
    order = plane.life(**BY_PROGRESS).start()
    before = plane.service.jobs()
    with pytest.raises(UserError, match=f"{next(iter(odd))} is .*allowed is .* to "):
        plane.trainer(order.token).heartbeat(replace(a_beat(5), **odd))
    assert plane.service.jobs() == before


@pytest.mark.parametrize(
    "odd",
    [{"progress": nan}, {"gain": inf}, {"samples": HUGE}, {"size_bytes": HUGE}, {"layout": Layout(data=HUGE)},
     {"timings": {"save": inf}}, {"timings": {"first_step_at": -1e308}}, {"timings": {"last_step_at": 1e12}}],
    ids=str,
)  # fmt: skip
def test_an_odd_number_of_a_commit_is_refused_in_words(plane: Plane, odd: dict[str, Any]) -> None:
    order = plane.life(**BY_PROGRESS).start()
    with pytest.raises(UserError, match=next(iter(odd)).removesuffix("s")):
        plane.trainer(order.token).commit(a_commit(order, 5, **odd))
    assert plane.service.checkpoints("job-a") == []


@pytest.mark.parametrize(
    "odd",
    [{"at": inf}, {"num_slots": 2**40}, {"global_batch": -1}, {"step_seconds": 5e-324}, {"sync_seconds": nan},
     {"samples_per_second": inf}, {"progress": nan}, {"memory_bytes": HUGE},
     {"stages": (PlacedStage(layers=(0, HUGE), type="cpu", num_slots=1),)},
     {"exchanges": (ExchangeFigures(algorithm="allreduce", measured_seconds=nan),)},
     {"exchange_needs": told_costs(A_COST, link=Link(-1.0, 1e-9))},
     {"exchange_needs": told_costs(replace(A_COST, sent_bytes=(1.0, inf, 1.0)))},
     {"exchange_needs": told_costs(replace(A_COST, every=0))}],
    ids=str,
)  # fmt: skip
def test_an_odd_number_of_an_observation_is_refused_in_words(plane: Plane, odd: dict[str, Any]) -> None:
    order = plane.life().start()
    with pytest.raises(UserError, match=next(iter(odd))):
        plane.trainer(order.token).observe([an_observation(1, order), an_observation(2, order, **odd)])
    plane.trainer(order.token).commit(a_commit(order, 5))
    assert plane.service.snapshot().jobs[0].profile == ()


def test_an_odd_number_by_any_other_method_is_refused_in_words(plane: Plane) -> None:
    order = plane.life().start()
    with pytest.raises(UserError, match="index is"):
        plane.trainer(order.agent_token).release_slots([Slot("node-a", HUGE, "cpu")], order.epoch)
    with pytest.raises(UserError, match=r"1000000.* allowed is 0 to"):
        plane.trainer(order.agent_token).release_slots([], HUGE)
    with pytest.raises(UserError, match=r"1000000.* allowed is 0 to"):
        plane.trainer(order.token).mark_bad(HUGE, "why")
    with pytest.raises(UserError, match="exit_codes is"):
        plane.trainer(order.agent_token).exited(ExitReport(kind="infrastructure", exit_codes=(HUGE,)))
    assert plane.service.segment(order.segment_id).state is SegmentState.RUNNING


def test_what_a_model_that_diverges_measures_is_taken_as_it_is() -> None:
    commit = Commit(
        step=1, samples=1, uri="", manifest_sha256="", size_bytes=1, layout=Layout(), metrics={"loss": nan}, final=False
    )
    check_numbers(commit)
    with pytest.raises(UserError, match="fingerprints: the number inf is not one of JSON"):
        check_numbers(replace(commit, fingerprints={"epochs": [{"number": inf}]}))


def test_every_number_of_every_method_of_a_trainer_has_a_range() -> None:
    """But what the model measures: its losses, gradients and metrics."""
    told = {
        kind for method in trainer_methods().values() for of in method.parameters.values() for kind in _messages(of)
    }
    assert {Heartbeat, Commit, Observation, ExitReport, Layout, Slot} <= told
    free = {name for kind in told for name, of in get_type_hints(kind, include_extras=True).items() if _is_free(of)}
    assert free == {"loss", "learning_rate", "grad_sqr", "grad_var", "metrics"}


def _messages(of: Any) -> Iterator[type[Any]]:
    if is_dataclass(of) and isinstance(of, type):
        yield of
        hints = get_type_hints(of, include_extras=True)
        for field in fields(of):
            yield from _messages(hints[field.name])
    for part in get_args(of) if get_origin(of) is not Annotated else get_args(of)[:1]:
        yield from _messages(part)


def _is_free(of: Any) -> bool:
    return OF_THE_MODEL in get_args(of) or any(map(_is_free, get_args(of)))


# Of a release that did not look at numbers.
STORED = [
    "UPDATE heartbeats SET progress = 'NaN', gain = 5e-324",
    "UPDATE heartbeats SET progress = 'Infinity', gain = 'NaN'",
    "UPDATE checkpoints SET progress = 'NaN', gain = 0",
    "UPDATE checkpoints SET progress = 1e308, gain = '-Infinity'",
    """UPDATE checkpoints SET timings = '{"first_step_at": 1e308, "last_step_at": -1e308, "save": 1e308}'""",
    """UPDATE checkpoints SET timings = '{"first_step_at": "NaN", "last_step_at": "Infinity", "save": "NaN"}'""",
    "UPDATE observations SET grad_var = CASE step % 2 WHEN 0 THEN 1e160 ELSE -1e160 END, grad_sqr = 1e160",
    "UPDATE observations SET grad_var = 1e99, grad_sqr = 5e-324",
    "UPDATE observations SET progress = 'NaN', gain = 'NaN', samples_per_second = 'NaN'",
    "UPDATE observations SET progress = 1e308, gain = 1e308, samples_per_second = 1e308, global_batch = 0",
    "UPDATE observations SET step_seconds = 5e-324, sync_seconds = 'Infinity', samples_per_second = 5e-324",
]


@pytest.fixture
def jobs_that_train(control: LedgerControl) -> dict[str, LaunchOrder]:
    """Two on one slot each: one goes on in a second segment."""
    orders = {}
    for job_id, spec in (("job-a", BY_PROGRESS), ("job-b", {})):
        control.submit(job_id, a_spec(slots=(1, 1), **spec), FACTS)
        life = Life(control, control.trainer, job_id)
        order, timings = life.start(), {"first_step_at": 1_000_000.0, "last_step_at": 1_000_001.0, "save": 1.0}
        trainer = control.trainer(order.token)
        trainer.observe([an_observation(step, order, grad_sqr=1.0, grad_var=2.0) for step in range(1, 7)])
        trainer.commit(a_commit(order, 6, final=True, draining=True, timings=timings))
        life.leave(order)
        orders[job_id] = order = life.start(7)
        control.trainer(order.token).observe([an_observation(8, order)])
        control.trainer(order.token).commit(a_commit(order, 8, timings=timings))
        control.trainer(order.token).heartbeat(a_beat(9))
    return orders


@pytest.mark.parametrize("odd", STORED)
def test_an_odd_number_that_is_stored_stops_nobody(
    control: LedgerControl, ledger_url: str, clock: FakeClock, jobs_that_train: dict[str, LaunchOrder], odd: str
) -> None:
    """Neither decisions nor lists nor reconciliation nor metrics."""
    _store(ledger_url, [odd])
    assert [job.job_id for job in control.snapshot().jobs] == ["job-a", "job-b"]
    control.submit("job-c", a_spec(slots=(1, 1)), FACTS)
    assert Life(control, control.trainer, "job-c").start().allocation.num_slots == 1
    assert [job.job_id for job in control.jobs()] == ["job-a", "job-b", "job-c"]
    assert control.jobs()[0].done_samples >= 0
    clock.advance(1000)
    assert control.reconcile([]).active_jobs == ("job-a", "job-b", "job-c")
    assert control.meter.page()
    assert len(control.finished_runs(10)) == 2


def test_a_job_that_cannot_be_decided_on_keeps_what_it_holds_and_the_others_are_decided_on(
    control: LedgerControl, ledger_url: str, jobs_that_train: dict[str, LaunchOrder]
) -> None:
    _store(ledger_url, ["""UPDATE jobs SET changes = '{"priority": "none at all"}' WHERE id = 'job-a'"""])
    snapshot = control.snapshot()
    assert [job.job_id for job in snapshot.jobs] == ["job-b"]
    assert "job-a" in snapshot.not_finished
    assert sum(snapshot.capacity().values()) == 3  # its slot is nobody else's
    control.decide("a test")
    assert control.segment(jobs_that_train["job-a"].segment_id).lease_live
    _store(ledger_url, ["UPDATE jobs SET changes = NULL"])
    assert [job.job_id for job in control.snapshot().jobs] == ["job-a", "job-b"]


def test_the_others_are_decided_on_with_the_very_slots_that_they_hold(
    control: LedgerControl, ledger_url: str, jobs_that_train: dict[str, LaunchOrder]
) -> None:
    (kept,), (held,) = (jobs_that_train[job_id].allocation.slots for job_id in ("job-a", "job-b"))
    assert (kept.node, kept.index) < (held.node, held.index) == (kept.node, 1)
    _store(ledger_url, ["""UPDATE jobs SET changes = '{"priority": "none at all"}' WHERE id = 'job-a'"""])
    snapshot = control.snapshot()
    assert set(snapshot.slots()) == {Slot(node, index, "cpu") for node in ("node-a", "node-b") for index in (0, 1)} - {
        kept
    }
    assert [job.allocation for job in as_they_stand(snapshot)] == [jobs_that_train["job-b"].allocation]
    control.decide("a test")
    assert control.replay(control.decisions(1)[0].decision_id).same


def _store(url: str, statements: Sequence[str]) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("SET session_replication_role = replica"))  # no triggers
        for statement in statements:
            connection.exec_driver_sql(statement.replace("%", "%%"))
    engine.dispose()
