"""What the page says of a job."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from elastic_airflow.page.overview import job_shown, restored_words
from elastic_core.domain import ExchangeFigures
from elastic_core.settings import Settings
from tests.builders import FACTS, FakeClock, Life, a_control, a_spec, an_observation


def test_where_a_jobs_state_came_from_is_said_by_source_and_with_its_time() -> None:
    timings = {
        "restored_from_own_memory_bytes": 12 * 2**20,
        "restored_from_same_host_bytes": 1536.0,
        "restored_from_store_bytes": 0.0,
        "restore_keep": 0.01,
        "restore_fetch": 0.3,
    }
    assert restored_words(timings) == "12.0 MiB kept in place, 1.5 KiB from processes of the same host, in 0.31 s"
    assert restored_words({}) == ""


def test_metrics_that_are_no_numbers_reach_the_page_as_texts(pool_url: str, tmp_path: Path) -> None:
    with closing(a_control(pool_url, tmp_path, FakeClock(1_800_000_000.0))) as plane:
        plane.submit("runs", a_spec(), FACTS)
        job = plane.record_results("runs", {"evaluation": {"loss": float("nan"), "accuracy": 0.5}})
        shown = job_shown(job, plane.courses(["runs"])["runs"], Settings(home=tmp_path), 1_800_000_000.0)
    sent = json.dumps(shown.model_dump(mode="json"), allow_nan=False)  # as the API server sends it
    assert json.loads(sent)["evaluation"] == {"loss": "NaN", "accuracy": 0.5}


def test_the_page_says_what_a_named_exchange_saves(pool_url: str, tmp_path: Path) -> None:
    figures = (ExchangeFigures(algorithm="bytegrad", measured_seconds=0.5, measured_bytes=25e6),
               ExchangeFigures(algorithm="allreduce", predicted_seconds=2.0, predicted_bytes=101e6))  # fmt: skip
    with closing(a_control(pool_url, tmp_path, FakeClock(1_800_000_000.0))) as plane:
        for job_id, comm in (("named", "bytegrad"), ("exact", "allreduce")):
            plane.submit(job_id, a_spec(slots=(2, 2), comm={"algorithm": comm}), FACTS)
            order = Life(plane, plane.trainer, job_id).start()
            if job_id == "named":
                told = an_observation(1, order, num_slots=2, comm=comm, exchanges=figures)
                plane.trainer(order.token).observe([told])
        courses, settings = plane.courses(["named", "exact"]), Settings(home=tmp_path)
        shown = {job.job_id: job_shown(job, courses[job.job_id], settings, 1_800_000_000.0) for job in plane.jobs()}
    assert shown["exact"].comm == "allreduce"
    assert shown["named"].comm == (
        "bytegrad (lossy) on 2 slots: 0.5 s and 25 MB a step, against 2 s and 101 MB (predicted) of allreduce"
    )


def test_a_job_that_waits_is_late_if_it_would_be_from_now_on(pool_url: str, tmp_path: Path) -> None:
    """Half an hour of work, five minutes until its deadline, and no slots."""
    clock = FakeClock(1_800_000_000.0)
    with closing(a_control(pool_url, tmp_path, clock)) as plane:
        plane.submit("runs", a_spec(slots=(4, 4)), FACTS)
        order = Life(plane, plane.trainer, "runs").start()
        plane.trainer(order.token).observe([an_observation(1, order, samples_per_second=10_000 / 1800.0)])
        for job_id, seconds in (("late", 300.0), ("in-time", 3600.0)):
            deadline = datetime.fromtimestamp(clock.now + seconds, UTC).isoformat()
            plane.submit(job_id, a_spec(slots=(4, 4), deadline=deadline), FACTS)
        jobs = plane.jobs(active_only=True)
        courses, settings = plane.courses([job.job_id for job in jobs]), Settings(home=tmp_path)
        shown = {job.job_id: job_shown(job, courses[job.job_id], settings, clock.now) for job in jobs}
    assert (shown["late"].slots, shown["late"].late) == (0, True)
    assert shown["late"].at_risk == (
        "it needs 30 min at the best speed known, once it has slots, and its deadline is in 5 min",
    )
    assert (shown["in-time"].late, shown["in-time"].at_risk) == (False, ())
