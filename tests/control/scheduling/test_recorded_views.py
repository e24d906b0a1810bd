"""What a job's record says of the job's end reaches the view that policies get."""

from __future__ import annotations

from dataclasses import replace

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import SegmentState, Snapshot, StepForecast, WorkForecast, from_json, to_json
from elastic_core.snapshot.job_record import JobRecord, OpenSegment, Submission, job_view, unsubmitted
from tests.builders import FACTS, a_spec


def test_a_view_has_every_forecast_of_its_record() -> None:
    work = WorkForecast(probabilities=(0.5,), totals=(2000.0,), source="history")
    steps = StepForecast(probabilities=(0.5,), seconds={"cpu": (0.1,)})
    spec = a_spec()
    view = job_view(
        JobRecord(
            job=Submission(
                job_id="a", name="a", task=spec.entry_point, queue="default", priority=0, submitted_at=0.0,
                deadline=None, limits=spec.limits(),
            ),
            total_samples=None,
            segment=OpenSegment(segment_id="a__seg_0", state=SegmentState.WAITING, created_at=0.0),
            predictable=0.75, most_samples=4000, expected_samples=1800.0, work_forecast=work, step_forecast=steps,
        )
    )  # fmt: skip
    assert (view.predictable, view.most_samples, view.expected_samples) == (0.75, 4000, 1800.0)
    assert (view.work_forecast, view.step_forecast) == (work, steps)


def test_who_may_end_before_is_shown_with_the_most_that_it_may_take(control: LedgerControl) -> None:
    control.submit("open", a_spec(work={"epochs": 100, "target_loss": 0.1}), FACTS)
    control.submit("declared", a_spec(work={"epochs": 100}), FACTS)
    for job_id in ("open", "declared"):
        control.acquire(f"{job_id}__seg_0")
    most = 100 * FACTS.dataset_samples
    shown = {view.job_id: (view.total_samples, view.most_samples) for view in control.snapshot().jobs}
    assert shown == {"open": (None, most), "declared": (most, None)}


def test_a_picture_recorded_before_there_was_a_most_is_read_and_stays_as_it_was(control: LedgerControl) -> None:
    control.submit("declared", a_spec(), FACTS)
    control.acquire("declared__seg_0")
    stored = to_json(control.snapshot())
    assert "most_samples" not in stored["jobs"][0]
    assert from_json(Snapshot, stored) == control.snapshot()


def test_a_job_that_is_not_submitted_yet_is_estimated_with_the_samples_that_it_may_read() -> None:
    capped = a_spec(work={"samples": 10_000, "measure": "progress", "max_samples": 4_000})
    view = replace(unsubmitted(capped, "a", capped.limits(), now=0.0), total_samples=10_000)
    assert (view.samples_left, view.remaining_samples) == (4_000, 4_000)
    assert unsubmitted(a_spec(), "a", a_spec().limits(), now=0.0).samples_left is None
