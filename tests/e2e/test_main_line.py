"""The main line on the real services: from the trigger form to a registered model, resized on the way."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from elastic_core.domain import JobState, SegmentState
from elastic_core.protocol.forecasts import Quantity
from elastic_core.protocol.records import JobStatus, SegmentStatus
from elastic_core.state.stores.store_urls import open_store
from elastic_core.track import model_registry
from elastic_core.train.data.audit import prove
from tests.e2e.platform import Platform, eventually

LINE = "tests.e2e.tasks_for_tests:LineTask"
DATASET = 400


def a_job(
    name: str, *, samples: int = 4_000, slots: tuple[int, int] = (1, 2), seconds: float = 600.0, **more: Any
) -> Any:
    """A job that needs about 5 ms a sample on one slot."""
    return {
        "name": name,
        "entry_point": LINE,
        "params": {"samples": DATASET, "milliseconds": 5},
        "work": {"samples": samples},
        "batch": {"min": 16, "max": 64},
        "slots": {"min": slots[0], "max": slots[1]},
        "segment": {"seconds": seconds},
        "audit": "full",
        **more,
    }


def start(platform: Platform, spec: dict[str, Any], run_id: str | None = None) -> str:
    return platform.trigger("elastic_job", {"spec": spec}, run_id or spec["name"])


def job_of(platform: Platform, job_id: str) -> JobStatus | None:
    """None until its submission has come through."""
    return next((job for job in platform.control.jobs() if job.job_id == job_id), None)


def is_over(platform: Platform, job_id: str) -> JobStatus | None:
    job = job_of(platform, job_id)
    return job if job and job.state is not JobState.ACTIVE else None


def finished(platform: Platform, job_id: str, seconds: float = 240.0) -> JobStatus:
    job: JobStatus = eventually(lambda: is_over(platform, job_id), seconds, f"job {job_id} is over")
    assert (job.state, job.error) == (JobState.FINISHED, None)
    return job


def trains(platform: Platform, job_id: str, slots: int | None = None) -> SegmentStatus | None:
    """The segment that trains, once it has taken a step on that many slots."""
    job = job_of(platform, job_id)
    if job is None or job.segment_state is not SegmentState.RUNNING or job.step == 0 or job.allocation is None:
        return None
    return platform.control.segment(job.segment_id) if slots in (None, job.allocation.num_slots) else None


def tasks_of(platform: Platform, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
    answer = platform.airflow.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances").raise_for_status()
    return {task["task_id"]: task for task in answer.json()["task_instances"]}


def states_of(platform: Platform, dag_id: str, run_id: str) -> dict[str, str | None]:
    return {name: task["state"] for name, task in tasks_of(platform, dag_id, run_id).items()}


def log_of(platform: Platform, dag_id: str, run_id: str, task_id: str, attempt: int = 1) -> str:
    path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}"
    return platform.airflow.get(path, params={"full_content": True}).text


def assert_read_exactly_once(platform: Platform, job_id: str, samples: int = DATASET) -> None:
    """Every completed epoch read every sample of the data set exactly once, compared index by index."""
    verdicts = prove(platform.control.reads(job_id), samples, open_store(platform.settings.store_url()))
    complete = [verdict for verdict in verdicts if verdict.proven is not None]
    assert len(complete) >= len(verdicts) - 1
    assert [verdict for verdict in complete if not (verdict.proven and verdict.every_index)] == []


def test_a_job_goes_from_the_form_to_a_registered_model(platform: Platform) -> None:
    form = {"preset": "none", "name": "form", "entry_point": LINE, "params": {"samples": DATASET, "milliseconds": 5},
            "work_samples": 5_000, "batch_min": 16, "batch_max": 64, "slots_max": 2, "segment_seconds": 6.0,
            "audit": "full"}  # fmt: skip
    platform.trigger("elastic_job", form, "form")
    job = finished(platform, "form")
    eventually(lambda: platform.run_state("elastic_job", "form") == "success", 180, "the run of the job succeeds")
    tasks = tasks_of(platform, "elastic_job", "form")
    assert {name: (task["state"], task["try_number"]) for name, task in tasks.items()} == {
        name: ("success", 1) for name in ("submit", "train", "evaluate", "register")
    }
    segments = platform.control.segments("form")
    assert len(segments) > 1, "six seconds a segment should have made several"
    for segment in segments:
        run = segment.segment_id
        eventually(lambda run=run: platform.run_state("elastic_segment", run) == "success", 90, f"{run} succeeds")
    assert_read_exactly_once(platform, "form")
    assert job.done_samples == 5_000
    assert Quantity.WORK in {grade.quantity for grade in job.hindsight}, "what was forecast of it is graded"
    champion = model_registry.champion(platform.control, platform.settings, "form")
    assert champion is not None
    assert champion.metrics == platform.control.job("form").results["evaluation"]


def test_a_boundary_without_a_resize_keeps_the_processes(platform: Platform) -> None:
    """Continues the job above: all its segments at one size went on in the processes of the first."""
    segments = platform.control.segments("form")
    pairs = pairwise(segments)
    same = [b for a, b in pairs if a.allocation and b.allocation and a.allocation.slots == b.allocation.slots]
    assert same
    assert all(segment.handed_over for segment in same)


def test_the_jobs_task_links_to_its_segments_mlflow_and_the_page(platform: Platform) -> None:
    links = platform.airflow.get("/dags/elastic_job/dagRuns/form/taskInstances/train/links").json()["extra_links"]
    assert links["Segments"].endswith("/dags/elastic_segment/runs?run_id_pattern=form")
    assert links["The job"].endswith("/plugin/elastic-job?job=form")
    assert "/#/experiments/" in links["MLflow"]


def test_no_token_is_in_run_conf_xcom_or_logs(platform: Platform) -> None:
    secret = platform.settings.secret_file("control").read_text().strip()
    segment = platform.control.segments("form")[0].segment_id
    seen = [
        platform.airflow.get(f"/dags/elastic_segment/dagRuns/{segment}").text,
        platform.airflow.get(f"/dags/elastic_segment/dagRuns/{segment}/taskInstances/~/xcomEntries").text,
        log_of(platform, "elastic_segment", segment, "train"),
        log_of(platform, "elastic_segment", segment, "acquire"),
    ]
    for text in seen:
        assert secret not in text
        assert "eyJ" not in text, "that is how a token begins"


def test_a_running_job_shrinks_for_another_and_loses_no_sample(platform: Platform) -> None:
    start(platform, a_job("wide", samples=30_000))
    eventually(lambda: trains(platform, "wide", 2), 120, "the first job trains on two slots")
    start(platform, a_job("greedy", slots=(3, 3), priority=10))  # which wins it a start, though it is short anyway
    eventually(lambda: trains(platform, "greedy", 3), 180, "the second job trains on three slots")
    assert finished(platform, "greedy").done_samples == 4_000
    assert finished(platform, "wide").done_samples == 30_000
    segments = [segment for segment in platform.control.segments("wide") if segment.allocation]
    sizes = [segment.allocation.num_slots for segment in segments if segment.allocation]
    shrunk = sizes.index(1)
    assert set(sizes[:shrunk]) == {2}
    assert "resize" in str(segments[shrunk - 1].end_reason)
    assert_read_exactly_once(platform, "wide")
    assert_read_exactly_once(platform, "greedy")


def test_a_users_exception_fails_the_job_at_once_and_airflow_shows_its_last_line(platform: Platform) -> None:
    spec = a_job("poisoned", params={"samples": DATASET, "milliseconds": 1, "poison": 7})
    start(platform, spec)
    eventually(lambda: platform.run_state("elastic_job", "poisoned") == "failed", 180, "the run fails")
    task = tasks_of(platform, "elastic_job", "poisoned")["train"]
    assert (task["state"], task["try_number"]) == ("failed", 1)
    assert "ValueError: sample 7 is poisoned" in log_of(platform, "elastic_job", "poisoned", "train")
    assert "ValueError: sample 7 is poisoned" in (platform.control.job("poisoned").error or "")


def test_a_spec_that_is_wrong_is_refused_before_there_is_a_run(platform: Platform) -> None:
    conf = {"spec": {**a_job("wrong"), "bacth": {}}}
    answer = platform.airflow.post(
        "/dags/elastic_job/dagRuns", json={"logical_date": None, "conf": conf, "dag_run_id": "wrong"}
    )
    assert answer.status_code == 422, answer.text
    assert "did you mean 'batch'" in answer.text
    assert platform.airflow.get("/dags/elastic_job/dagRuns/wrong").status_code == 404


def test_what_only_the_platform_can_judge_fails_the_submission_at_once(platform: Platform) -> None:
    start(platform, {**a_job("nowhere"), "queue": "no-such-queue"}, "nowhere")
    eventually(lambda: platform.run_state("elastic_job", "nowhere") == "failed", 120, "the run fails")
    assert tasks_of(platform, "elastic_job", "nowhere")["submit"]["try_number"] == 1
    assert "no-such-queue" in log_of(platform, "elastic_job", "nowhere", "submit")


def test_segments_cannot_be_started_by_hand(platform: Platform) -> None:
    answer = platform.airflow.post("/dags/elastic_segment/dagRuns", json={"logical_date": None})
    assert answer.status_code == 400, answer.text


def test_retraining_replaces_the_champion_only_by_a_better_model(platform: Platform) -> None:
    def retrain(run_id: str, samples: int, start_from: str) -> dict[str, Any]:
        spec = a_job("again", samples=samples, params={"samples": DATASET, "milliseconds": 0.2})
        platform.trigger("elastic_retrain", {"spec": spec, "start_from": start_from}, run_id)
        eventually(lambda: platform.run_state("elastic_retrain", run_id) == "success", 240, f"{run_id} succeeds")
        found = platform.airflow.get(
            f"/dags/elastic_retrain/dagRuns/{run_id}/taskInstances/register/xcomEntries/return_value",
            params={"deserialize": True},
        )
        outcome: dict[str, Any] = found.json()["value"]
        return outcome

    assert "has no champion to beat: promoted" in retrain("first", 2_000, "champion")["verdict"]
    assert "the champion stays" in retrain("worse", 64, "anew")["verdict"]
    assert "promoted" in retrain("better", 8_000, "champion")["verdict"]
    champion = model_registry.champion(platform.control, platform.settings, "again")
    assert champion is not None
    assert champion.version == "3"


@pytest.mark.nightly  # of which `benchmarks.many_jobs` says more
@pytest.mark.timeout(900)
def test_forty_jobs_wait_without_blocking_the_one_that_runs(platform: Platform) -> None:
    control = platform.control
    start(platform, a_job("hog", samples=1_000_000, slots=(4, 4), seconds=15.0))
    eventually(lambda: trains(platform, "hog"), 120, "the running job trains")
    facts = control.job("hog").facts
    spec = control.job("hog").spec
    waiting = [f"wait-{index}" for index in range(40)]
    for job_id in waiting:
        control.submit(job_id, spec.model_copy(update={"name": job_id, "priority": -10}), facts)
        platform.trigger("elastic_job", {"job_id": job_id}, job_id)

    def all_wait() -> bool:
        runs = [f"{job_id}__seg_0" for job_id in waiting]
        query = {"dag_ids": ["elastic_segment"], "dag_run_ids": runs, "task_ids": ["acquire"], "page_limit": 100}
        found = platform.airflow.post("/dags/~/dagRuns/~/taskInstances/list", json=query).raise_for_status().json()
        return [task["state"] for task in found["task_instances"]].count("deferred") == len(waiting)

    eventually(all_wait, 400, "all forty wait deferred, and none of them in a worker slot")
    before = control.job("hog")
    eventually(lambda: trains(platform, "hog") and control.job("hog").step > before.step, 60, "the job trains on")

    def moved_on() -> bool:
        segment = control.job("hog").segment_id
        runs = platform.airflow.get(f"/dags/elastic_segment/dagRuns/{segment}")
        return segment != before.segment_id and runs.status_code == 200

    eventually(moved_on, 120, "the next segment of the running job gets its run while forty wait")
    for job_id in [*waiting, "hog"]:
        control.cancel(job_id, "the test is over")
    eventually(
        lambda: not control.jobs(True) and not any(n.allocation for n in control.snapshot().jobs), 90, "all over"
    )
