"""The demo's verdict: it must not say yes to what did not happen."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from elastic_core.domain import Allocation, JobState, Layout, Node, SegmentState
from elastic_core.protocol.records import JobFacts, JobStatus, SegmentStatus
from elastic_core.spec import JobSpec
from elastic_core.train.data.audit import AuditResult
from examples.demo import live
from examples.demo.jobs import PLANS, job_ids, sized_spec
from examples.demo.report import Outcome, claims, show
from tests.builders import a_spec

NODES = [Node(name=name, type="cpu", num_slots=2) for name in ("node-a", "node-b")]
SLOTS = [slot for node in NODES for slot in node.slots()]
PLAN = next(plan for plan in PLANS if plan.preset == "digits")


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
    assert len(job_ids(0.0)) == len(PLANS) == 3
