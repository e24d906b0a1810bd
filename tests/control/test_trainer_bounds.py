"""How much a job's own code may have stored with its token, over every implementation of the contract."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from elastic_core.control import paces
from elastic_core.control.paces import (
    REPORT_BYTES,
    REPORT_BYTES_A_SECOND,
    REPORTS,
    SEGMENT_SECONDS,
    SEGMENTS,
    Allowance,
    CommitPace,
)
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import ExchangeFigures, Layout
from elastic_core.errors import TooMany, UserError
from tests.builders import FakeClock, a_commit, an_observation
from tests.control.conftest import Plane
from tests.policy.builders import A_COST, told_costs

NEEDS = replace(told_costs(A_COST, num_nodes=2), num_slots=4)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"notes": ("x" * 2_001,)}, r"a note has 2001 characters \('xxx.*allowed are 2000: shorten it"),
        ({"notes": tuple(map(str, range(21)))}, "notes has 21 entries; allowed are 20"),
        ({"metrics": {str(n): 0.0 for n in range(1_001)}}, "metrics has 1001 entries; allowed are 1000"),
        ({"metrics": {"m" * 257: 0.0}}, "a name in metrics has 257 characters"),
        ({"timings": {"t" * 257: 0.0}}, "a name in timings has 257 characters"),
        (
            {"metrics": {f"{n:0>200}": 0.5 for n in range(400)}, "timings": {f"{n:0>200}": 0.5 for n in range(400)}},
            "metrics and timings have 165602 bytes as JSON; allowed are 131072 a commit: give fewer, or shorter names",
        ),
        ({"fingerprints": {"epochs": ["x" * 1_024] * 9_000}}, "fingerprints .* allowed are 8388608 a commit"),
        ({"manifest_sha256": "0" * 257}, "manifest_sha256 has 257 characters"),
        ({"uri": "job-a/" + "9" * 5_000}, "uri has 5006 characters"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_commit_of_more_than_any_job_needs_is_refused_in_words(
    plane: Plane, more: dict[str, object], says: str
) -> None:
    order = plane.life().start()
    with pytest.raises(UserError, match=says):
        plane.trainer(order.token).commit(a_commit(order, 5, **more))
    assert plane.service.checkpoints("job-a") == []
    assert plane.service.job("job-a").notes == ()


def test_what_a_job_of_a_thousand_ranks_commits_is_taken(plane: Plane) -> None:
    order = plane.life().start()
    folder = "job-a/audit/lineage-0/step-0000000005-epoch-1-0123456789ab"
    passes = [
        {"epoch": number, "count": 1, "mix_sum": "0" * 16,
         "objects": [f"{folder}-rank{rank}-pass{number}.npy" for rank in range(1_000)]}
        for number in range(20)
    ]  # fmt: skip
    metrics = {f"module.layers.{layer}.attention.norm": 1.0 for layer in range(1_000)}
    commit = a_commit(order, 5, fingerprints={"epochs": passes}, metrics=metrics, notes=("x" * 2_000,))
    plane.trainer(order.token).commit(commit)
    assert plane.service.reads("job-a") == [{"epochs": passes}]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"metrics": {str(n): 0.0 for n in range(1_001)}}, "metrics has 1001 entries; allowed are 1000"),
        ({"metrics": {"m" * 257: 0.0}}, "a name in metrics has 257 characters"),
        ({"comm": "c" * 257}, "comm has 257 characters"),
        ({"exchanges": 1_025 * (ExchangeFigures(algorithm="allreduce"),)}, "exchanges has 1025 entries"),
        ({"exchanges": (ExchangeFigures(algorithm="a" * 257),)}, "algorithm has 257 characters"),
        ({"exchange_needs": told_costs(*33 * (A_COST,))}, "costs of exchange_needs has 33 entries; allowed are 32"),
        ({"exchange_needs": told_costs(replace(A_COST, algorithm="a" * 257))}, "algorithm has 257 characters"),
        ({"exchange_needs": told_costs(replace(A_COST, rounds=(2.0, 2.0)))}, "3 numbers of bytes and 2 of rounds"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_observation_of_more_than_any_job_needs_is_refused_in_words(
    plane: Plane, more: dict[str, object], says: str
) -> None:
    order = plane.life().start()
    with pytest.raises(UserError, match=says):
        plane.trainer(order.token).observe([an_observation(1, order, **more)])


@pytest.mark.parametrize(
    ("count", "metrics", "says"),
    [
        (1_001, 0, "observations has 1001 entries; allowed are 1000: send fewer"),
        (21, 1_000, "what was observed has 21000 entries; allowed are 20000: send fewer"),
    ],
)
def test_more_observations_at_once_than_any_outage_leaves_are_refused_in_words(
    plane: Plane, count: int, metrics: int, says: str
) -> None:
    order = plane.life().start()
    told = [an_observation(step, order, metrics={str(n): 0.0 for n in range(metrics)}) for step in range(count)]
    with pytest.raises(UserError, match=says):
        plane.trainer(order.token).observe(told)
    plane.trainer(order.token).observe(told[: 20 if metrics else 1_000])


def test_a_corrupt_checkpoint_is_passed_over_however_much_there_is_to_say_of_it(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    for step in (2, 4):
        plane.trainer(order.token).commit(a_commit(order, step))
    life.leave(order, "infrastructure")
    again = plane.service.launch_order(order.segment_id)
    bad, _ = again.restore.candidates
    plane.trainer(again.token).mark_bad(bad.checkpoint_id, "x" * 100_000)
    (note,) = plane.service.job("job-a").notes
    assert len(note) < 2_200
    assert note.endswith("xxx...; the job goes on from checkpoint 1 (step 2)")


def test_of_many_notes_the_first_and_the_newest_are_kept(plane: Plane) -> None:
    order = plane.life().start()
    for step in range(1, 9):
        notes = tuple(f"{number}" for number in range(20 * step, 20 * step + 20))
        plane.trainer(order.token).commit(a_commit(order, step, notes=notes))
    assert plane.service.job("job-a").notes == tuple(map(str, [*range(20, 40), *range(100, 180)]))


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"type": "invented"}, "type is 'invented'; with the lease it can be cpu"),
        ({"num_slots": 3}, "num_slots is 3; with the lease it can be 4"),
        ({"num_nodes": 3}, "num_nodes is 3; with the lease it can be 2"),
        ({"global_batch": 2**20}, "global_batch is 1048576; with the lease it can be "),
        ({"layout": Layout(data=2, tensor=2)}, "layout is .*; with the lease it can be None"),
        ({"comm": "invented"}, "comm is 'invented'; with the lease it can be allreduce or "),
        ({"exchange_needs": replace(NEEDS, type="invented")}, "type of exchange_needs is 'invented'; .* it can be cpu"),
        ({"exchange_needs": replace(NEEDS, num_slots=2)}, "num_slots of exchange_needs is 2; .* it can be 4"),
        ({"exchange_needs": replace(NEEDS, num_nodes=3)}, "num_nodes of exchange_needs is 3; .* it can be 2"),
        (
            {"exchange_needs": replace(NEEDS, costs=(replace(A_COST, algorithm="invented"),))},
            "an algorithm of exchange_needs is 'invented'; .* it can be allreduce or ",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_was_measured_with_something_else_than_the_lease_has_counts_as_not_told(
    plane: Plane, other: dict[str, object], difference: str
) -> None:
    """It is logged once, and neither stops training nor takes with it what else is told."""
    order = plane.life().start()
    figures = (ExchangeFigures(algorithm="bytegrad"),)
    with capture_logs() as entries:
        for step in (1, 3, 5):
            odd = an_observation(step, order, step_seconds=9.0, exchanges=figures, **other)
            plane.trainer(order.token).observe([odd, an_observation(step + 1, order)])
    (view,) = plane.service.snapshot().jobs
    assert [(point.type, point.num_slots, point.step_seconds) for point in view.profile] == [("cpu", 4, 0.1)]
    assert plane.service.job("job-a").exchange is None
    (logged,) = [entry for entry in entries if "differ" in entry["event"]]
    assert re.search(difference, logged["event"])
    assert (logged["job"], logged["epoch"]) == ("job-a", order.epoch)


def test_whatever_its_ranks_find_to_exchange_by_is_told_of_a_lease(plane: Plane) -> None:
    order = plane.life(comm={"algorithm": "auto", "allow": "lossy"}).start()
    tried = [an_observation(step, order, comm=comm) for step, comm in enumerate(("allreduce", "fp16", "bytegrad"))]
    plane.trainer(order.token).observe(tried)
    (view,) = plane.service.snapshot().jobs
    assert [point.comm for point in view.profile] == ["allreduce", "bytegrad", "fp16"]


def test_results_larger_than_any_job_needs_are_refused_in_words(plane: Plane) -> None:
    plane.life()
    plane.service.record_results("job-a", {"evaluation": {"loss": 0.5}})
    with pytest.raises(UserError, match=r"the results evaluation of job 'job-a' have 4650016 bytes .* 4194304 at once"):
        plane.service.record_results("job-a", {"evaluation": {f"{n:0>86}": 0.5 for n in range(50_000)}})
    assert plane.service.job("job-a").results == {"evaluation": {"loss": 0.5}}


def test_a_job_that_commits_too_often_sends_a_commit_again_until_it_is_taken(
    control: LedgerControl, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an outage. One that ends its segment is taken, and what other jobs commit."""
    monkeypatch.setattr(paces, "MOST", 3)
    plane = Plane(control, control.trainer, clock)
    order, other = plane.life(slots=(2, 2)).start(), plane.life("job-b", slots=(2, 2)).start()
    trainer = plane.trainer(order.token)
    for step in (1, 2, 3):
        trainer.commit(a_commit(order, step))
    late = a_commit(order, 4)
    with pytest.raises(TooMany, match=r"'job-a' has committed 3 checkpoints within 120 s.* allowed are 3"):
        trainer.commit(late)
    with pytest.raises(TooMany):
        trainer.commit(replace(late, notes=("x" * 2_001,)))  # what it says is not even looked at
    plane.trainer(other.token).commit(a_commit(other, 1))
    assert len(plane.service.checkpoints("job-a")) == 3
    plane.clock.advance(120.0)
    trainer.commit(late)
    for step in (5, 6):
        trainer.commit(a_commit(order, step))
    trainer.commit(a_commit(order, 7, final=True))
    assert len(plane.service.checkpoints("job-a")) == 7


def test_a_commit_with_much_to_say_counts_for_several(
    control: LedgerControl, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paces, "MOST", 3)
    plane = Plane(control, control.trainer, clock)
    order = plane.life().start()
    metrics, timings = ({f"{name}{n:0>118}": 0.5 for n in range(500)} for name in ("m", "t"))
    trainer = plane.trainer(order.token)
    trainer.commit(a_commit(order, 1, metrics=metrics, timings=timings, notes=("x" * 2_000,) * 5))
    with pytest.raises(TooMany, match="has committed 3 checkpoints"):
        trainer.commit(a_commit(order, 2))


def test_a_job_that_ends_one_segment_after_the_other_waits_at_its_next_boundary(
    control: LedgerControl, clock: FakeClock
) -> None:
    """Each has all jobs decided on. Its checkpoints and its end wait for nothing, nor do other jobs."""
    plane = Plane(control, control.trainer, clock)
    order, other = plane.life(slots=(2, 2)).start(), plane.life("job-b", slots=(2, 2)).start()
    for step in range(1, SEGMENTS + 1):
        answer = plane.trainer(order.token).commit(a_commit(order, step, final=True))
        assert answer.order is not None
        order = answer.order
    decided = control.decisions(1)[0].decision_id
    late = a_commit(order, SEGMENTS + 1, final=True)
    with pytest.raises(TooMany, match=r"'job-a' has ended 60 segments, and one every 2 s since.*segment\.seconds"):
        plane.trainer(order.token).commit(late)
    assert control.decisions(1)[0].decision_id == decided
    assert control.job("job-a").segment_id == order.segment_id
    plane.trainer(order.token).commit(a_commit(order, SEGMENTS + 1))
    assert plane.trainer(other.token).commit(a_commit(other, 1, final=True)).order is not None
    clock.advance(SEGMENT_SECONDS)
    last = a_commit(order, SEGMENTS + 2, final=True)
    answer = plane.trainer(order.token).commit(last)
    assert answer.order is not None
    assert plane.trainer(order.token).commit(last) == answer, "asked again it is answered, not made again"
    with pytest.raises(TooMany):
        plane.trainer(answer.order.token).commit(a_commit(answer.order, SEGMENTS + 3, final=True))
    finished = plane.trainer(answer.order.token).commit(a_commit(answer.order, SEGMENTS + 3, finished=True))
    assert finished.order is None


def test_an_allowance_that_was_spent_comes_back_by_and_by_also_where_the_clock_is_set_back() -> None:
    allowance = Allowance(10.0, per_second=0.5)
    allowance.spend("job-a", 100.0, 14.0)
    assert [allowance.left("job-a", at) for at in (100.0, 104.0, 110.0, 1e6)] == [-4.0, -2.0, 1.0, 10.0]
    assert (allowance.left("job-b", 100.0), allowance.left("job-a", 99.0)) == (10.0, 10.0)


def test_no_more_is_taken_of_an_allowance_than_there_is() -> None:
    allowance = Allowance(10.0, per_second=0.5)
    assert [allowance.take("job-a", at, 6.0) for at in (100.0, 103.0, 104.0)] == [True, False, True]
    assert allowance.left("job-a", 104.0) == 0.0
    assert allowance.take("job-b", 104.0, 10.0)


def test_jobs_whose_allowance_is_whole_again_are_not_remembered() -> None:
    allowance = Allowance(10.0, per_second=1.0)
    for number in range(1_000):
        allowance.spend(f"job-{number}", float(number), 5.0)
    assert len(allowance._spent) <= 257


def test_a_job_that_reports_without_end_is_to_report_later(control: LedgerControl, clock: FakeClock) -> None:
    """What is not taken is sent again. The reports of other jobs are taken."""
    plane = Plane(control, control.trainer, clock)
    order, other = plane.life(slots=(2, 2)).start(), plane.life("job-b", slots=(2, 2)).start()
    trainer = plane.trainer(order.token)
    for first in range(0, REPORTS, 1_000):
        trainer.observe([an_observation(step, order) for step in range(first, first + 1_000)])
    late = [an_observation(REPORTS, order)]
    with pytest.raises(TooMany, match=r"'job-a' has reported 10000 observations .* 20 or .* This is taken later"):
        trainer.observe(late)
    plane.trainer(other.token).observe([an_observation(1, other)])
    with pytest.raises(TooMany):
        trainer.observe([replace(late[0], comm="x" * 257)])  # what it says is not even looked at
    clock.advance(1.0)
    trainer.observe(late)
    assert control._ledger.read(lambda tx: tx.session.scalar(text("SELECT max(step) FROM observations"))) == REPORTS


def test_reports_are_weighed_by_all_that_they_say(control: LedgerControl, clock: FakeClock) -> None:
    plane = Plane(control, control.trainer, clock)
    order = plane.life().start()
    trainer = plane.trainer(order.token)
    metrics = {f"{number:0>256}": 0.5 for number in range(1_000)}

    def reported(step: int) -> bool:
        try:
            trainer.observe([an_observation(20 * step + more, order, metrics=metrics) for more in range(20)])
        except TooMany:
            return False
        return True

    size = 20 * 1_000 * (256 + 7)
    assert sum(map(reported, range(10))) == math.ceil(REPORT_BYTES / size) < 10
    clock.advance(size / REPORT_BYTES_A_SECOND)
    assert reported(10)


def test_a_commit_of_large_fingerprints_counts_for_several() -> None:
    pace = CommitPace()
    for _ in range(7):
        pace.check("job-a", 0.0, final=False)
        pace.count("job-a", 0.0, 8 * 2**20)  # the most that one may have: 129 of a thousand
    pace.check("job-a", 0.0, final=False)
    pace.count("job-a", 0.0, 8 * 2**20)
    with pytest.raises(TooMany):
        pace.check("job-a", 119.0, final=False)
    pace.check("job-a", 119.0, final=True)
    pace.check("job-a", 120.0, final=False)
    assert pace._jobs == {}
