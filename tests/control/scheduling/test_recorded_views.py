"""What a job's record says of the job's end reaches the view that policies get."""

from __future__ import annotations

from elastic_core.domain import SegmentState, StepForecast, WorkForecast
from elastic_core.snapshot.job_record import JobRecord, OpenSegment, Submission, job_view
from tests.builders import a_spec


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
            predictable=0.75, expected_samples=1800.0, work_forecast=work, step_forecast=steps,
        )
    )  # fmt: skip
    assert (view.predictable, view.expected_samples) == (0.75, 1800.0)
    assert (view.work_forecast, view.step_forecast) == (work, steps)
