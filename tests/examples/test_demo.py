"""The demo's verdict: it must not say yes to what did not happen."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from elastic_core.domain import Allocation, JobState, Layout, Node, SegmentState
from elastic_core.protocol.forecasts import DECLARED, Forecast, Grade, Quantity
from elastic_core.protocol.records import JobFacts, JobStatus, SegmentStatus
from elastic_core.spec import JobSpec
from elastic_core.train.data.audit import AuditResult
from examples.demo import live
from examples.demo.__main__ import arrived
from examples.demo.jobs import PLANS, job_ids, sized_spec
from examples.demo.report import Outcome, claims, show
from tests.builders import a_spec

NODES = [Node(name=name, type="cpu", num_slots=2) for name in ("node-a", "node-b")]
SLOTS = [slot for node in NODES for slot in node.slots()]
PLAN = next(plan for plan in PLANS if plan.label == "digits")
UNTIL = next(plan for plan in PLANS if plan.target_loss is not None)


def an_allocation(slots: int) -> Allocation:
    return Allocation(slots=tuple(SLOTS[:slots]), global_batch=64, layout=Layout(data=slots))


def a_segment(index: int, slots: int) -> SegmentStatus:
    return SegmentStatus(
        segment_id=f"a__seg_{index}", job_id="a", index=index, lineage=0, state=SegmentState.COMMITTED, attempt=0,
        epoch=index, lease_live=False, allocation=an_allocation(slots), start_step=10 * index, end_step=10 * index + 10,
        created_at=0.0, asked_at=1.0, granted_at=2.0, started_at=3.0, ended_at=9.0, handed_over=False,
        revoke_reason=None, end_reason="resize: another came", grant_reason=f"{slots} slots are best",
    )  # fmt: skip


def a_job(state: JobState = JobState.FINISHED, **more: object) -> JobStatus:
    values = {
        "job_id": "a", "spec": a_spec(), "facts": JobFacts(dataset_samples=100, metric="accuracy", metric_mode="max"),
        "state": state, "lineage": 0, "total_samples": 200, "done_samples": 50, "step": 30, "submitted_at": 0.0,
        "finished_at": 9.0, "segment_id": "a__seg_2", "segment_state": SegmentState.RUNNING,
        "allocation": an_allocation(2), "target_reason": "two are enough",
        "results": {"evaluation": {"accuracy": 0.97}},
        **more,
    }  # fmt: skip
    return JobStatus(**values)


def an_outcome(**changes: object) -> Outcome:
    good = Outcome(
        job=a_job(),
        plan=PLAN,
        segments=[a_segment(i, slots) for i, slots in enumerate((2, 4, 1))],
        reads=[AuditResult(0, 100, 100, True, True), AuditResult(1, 100, 100, True, True)],
        run_state="success",
    )
    return replace(good, **changes)


def refused(outcome: Outcome, num_jobs: int = 1) -> list[str]:
    return [claim.words for claim in claims(num_jobs, [outcome]) if not claim.holds]


def test_a_good_run_holds_in_every_claim():
    assert refused(an_outcome()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"job": a_job(JobState.FAILED, error="ValueError: no")}, "every job finished"),
        ({"run_state": "failed"}, "every run in Airflow ended well"),
        ({"segments": [a_segment(0, 4), a_segment(1, 1)]}, "jobs grew when slots got free"),
        ({"segments": [a_segment(0, 1), a_segment(1, 4)]}, "jobs shrank when others came"),
        ({"reads": [AuditResult(0, 100, 100, False, True, "2 samples were read more than once")]}, "exactly once"),
        ({"reads": [AuditResult(0, 60, 100, None, True)]}, "exactly once"),
        ({"reads": [AuditResult(0, 100, 100, True, False)]}, "exactly once"),
        ({"reads": []}, "exactly once"),
        ({"job": a_job(results={"evaluation": {"accuracy": 0.5}})}, "digits learned"),
        ({"job": a_job(results={})}, "digits learned"),
    ],
)
def test_what_did_not_happen_is_said(changes, words):
    (only,) = refused(an_outcome(**changes))
    assert words in only


def test_a_job_that_never_came_is_missed():
    assert "every job finished" in refused(an_outcome(), num_jobs=2)


def test_the_story_names_the_reason_of_every_resize():
    console = Console(width=140, record=True, file=io.StringIO())
    show(console, an_outcome())
    text = console.export_text()
    assert "grew 2 -> 4 slots at step 10: resize: another came" in text
    assert "shrank 4 -> 1 slots at step 20" in text
    assert "2 of 2 epochs proven: each of the 100 samples was read exactly once (every recorded index compared)" in text
    assert "accuracy 0.97" in text


def test_the_live_table_shows_who_holds_which_slot_and_why():
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(live.picture(NODES, {"a": a_job(JobState.ACTIVE), "b": None}, 12.0))
    text = console.export_text()
    assert "node-a ■ ■    node-b □ □" in text
    assert "two are enough" in text
    assert "not here yet" in text
    assert live.line({"a": a_job(JobState.ACTIVE)}) == "a running on 2 25%"


def test_jobs_are_sized_for_the_machine_and_valid():
    spec = JobSpec.model_validate(sized_spec(PLAN))
    assert spec.work.epochs >= 2
    assert spec.audit == "full"
    assert spec.slots.max == 4
    until = JobSpec.model_validate(sized_spec(UNTIL))
    assert (until.name, until.work.epochs, until.work.target_loss) == ("digits-until", 60, 0.15)
    assert len(job_ids(0.0)) == len(PLANS) == 4


def a_forecast(done: float, left: tuple[float, float, float], source: str = "prior") -> Forecast:
    return Forecast(
        at=1.0, lineage=0, done=done, work_left=left, work_source=source, finish_at=None, assumes=None,
        finish_source="", policy="horizon", decision_id=1, work_decided=True,
    )  # fmt: skip


def an_early_end(**changes: object) -> Outcome:
    """Of two passes at most it took one and a half."""
    grade = Grade(quantity=Quantity.WORK, stage=0.0, made_at=0.0, error=-0.2, held=True, source="prior")
    good = an_outcome(
        plan=UNTIL,
        job=a_job(done_samples=150, hindsight=(grade,)),
        reads=[AuditResult(0, 100, 100, True, True), AuditResult(1, 50, 100, None, True)],
        forecasts=[a_forecast(0.0, (20.0, 120.0, 190.0)), a_forecast(100.0, (30.0, 45.0, 60.0), "loss curve")],
    )
    return replace(good, **changes)


def test_a_job_that_ends_by_its_loss_holds_in_every_claim_with_the_pass_that_it_did_not_finish():
    assert refused(an_early_end()) == []
    assert len(claims(1, [an_early_end()])) == len(claims(1, [an_outcome()])) + 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"job": a_job(done_samples=200)}, "ended by its loss, before its limit"),
        ({"forecasts": []}, "its work was forecast as an interval while it ran"),
        ({"forecasts": [a_forecast(0.0, (200.0, 200.0, 200.0), DECLARED)]}, "its work was forecast as an interval"),
        ({"reads": [AuditResult(0, 50, 100, None, True), AuditResult(1, 50, 100, None, True)]}, "exactly once"),
    ],
)
def test_a_job_that_was_to_end_by_its_loss_and_did_not_is_said(changes, words):
    (only,) = refused(an_early_end(**changes))
    assert words in only


def test_the_story_tells_class_intervals_and_the_early_end():
    console = Console(width=140, record=True, file=io.StringIO())
    show(console, an_early_end(probability=0.75))
    show(console, an_early_end())
    text = console.export_text()
    assert "class: its progress can be predicted with a probability of 0.75" in text
    assert "class: not known: this installation has no classifier" in text
    assert "after 0 passes of work: 1.2 passes, 80 % between 0.2 passes and 1.9 passes (by prior) in all" in text
    assert "after 1 passes of work: 1.45 passes, 80 % between 1.3 passes and 1.6 passes (by loss curve) in all" in text
    assert "the interval at 0% of its work held its end" in text
    assert "finished after 1.5 passes of at most 2 passes; its target is a loss of 0.15" in text
    assert "1 of 1 epochs proven" in text


def test_the_next_job_comes_also_when_the_one_before_was_over_early():
    plan = replace(PLAN, next_at=0.9)
    assert not arrived(a_job(JobState.ACTIVE), plan)
    assert arrived(a_job(JobState.FINISHED), plan)
    assert arrived(a_job(JobState.ACTIVE, done_samples=190), plan)
    assert not arrived(None, plan)
