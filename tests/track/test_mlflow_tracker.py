"""What MLflow shows of a job's life: runs, curves and checkpoints."""

from __future__ import annotations

import math
import tempfile
import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from elastic_core.domain import ExchangeFallback, ExchangeFigures, JobState, SegmentState, to_json
from elastic_core.protocol.events import SWEPT, EventKind
from elastic_core.protocol.exchange_words import fallback_words
from elastic_core.protocol.process_groups import FORK, ForkPoint
from elastic_core.settings import Settings
from elastic_core.spec.parts.job_group import Group
from elastic_core.track.facts import curve_points
from elastic_core.track.follow import Follower, lag
from elastic_core.track.mlflow_tracker import MlflowTracker
from elastic_core.track.segment_facts import checkpoint_of
from tests.track.story import T0, Story, observation


def follow(story: Story, client: MlflowClient, page: int = 500) -> None:
    Follower(story, MlflowTracker(client, story, story, Settings()), page=page).catch_up()


def runs(client: MlflowClient, story: Story, kind: str) -> list[Run]:
    experiment = client.get_experiment_by_name(f"elastic/{story.name}")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], f"tags.`elastic.job_id` = '{story.job_id}'")
    is_child = {"job": False, "attempt": True}[kind]
    chosen = [run for run in found if ("mlflow.parentRunId" in run.data.tags) == is_child]
    return sorted(chosen, key=lambda run: (run.info.start_time, run.data.params.get("epoch", "")))


def job_run(client: MlflowClient, story: Story) -> Run:
    (run,) = runs(client, story, "job")
    return run


def points(client: MlflowClient, run: Run, key: str = "loss") -> list[tuple[int, float]]:
    return sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, key))


def models(client: MlflowClient, story: Story, **kwargs):
    experiment = job_run(client, story).info.experiment_id
    return list(client.search_logged_models([experiment], f"tags.`elastic.job_id` = '{story.job_id}'", **kwargs))


def test_points_of_a_commit_whose_model_cannot_be_shown_are_shown(client, tmp_path, monkeypatch):
    story = Story(name="kept-points").submit().grant(1).observe(1, 2).commit(2)
    tracker = MlflowTracker(client, story, story, Settings())
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))  # its description is written there first
        Follower(story, tracker).catch_up()
    assert [model.status for model in models(client, story)] == ["PENDING"]
    story.observe(3).commit(3)
    Follower(story, tracker).catch_up()
    assert points(client, job_run(client, story)) == sorted(story.curve.items())


def test_a_crashed_attempt_shows_in_its_own_run_and_leaves_no_trace_in_the_jobs_curve(client):
    story = Story().submit()
    story.grant(2).observe(1, 2).observe(3).commit(2).observe(4, 5).end_segment(SegmentState.FAILED, "infrastructure")
    story.grant(1, attempt=1).observe(3, 4).commit(4, final=True).end_segment().end()
    follow(story, client)

    job = job_run(client, story)
    assert points(client, job) == sorted(story.curve.items())
    assert [step for step, _ in points(client, job)] == [1, 2, 3, 4]
    first, second = runs(client, story, "attempt")
    assert [step for step, _ in points(client, first)] == [1, 2, 3, 4, 5]
    assert [step for step, _ in points(client, second)] == [3, 4]
    assert (first.info.status, second.info.status, job.info.status) == ("FAILED", "FINISHED", "FINISHED")
    assert first.data.tags["elastic.error"] == "killed"


def test_the_choice_of_an_exchange_is_a_tag_of_its_attempt_and_job_and_its_figures_are_metrics(client):
    story = Story().submit().grant(2)
    figures = ExchangeFigures(algorithm="bytegrad", predicted_seconds=0.5, measured_seconds=0.4, measured_bytes=25e6)
    chosen = replace(observation(8, story.epoch), comm="bytegrad", exchanges=(figures,))
    story.tell(EventKind.OBSERVED, observations=[to_json(chosen)])
    follow(story, client)
    (attempt,) = runs(client, story, "attempt")
    for run in (attempt, job_run(client, story)):
        assert run.data.tags["elastic.exchange"] == "bytegrad on 2 slots: 0.4 s and 25 MB a step"
    assert points(client, attempt, "exchange/bytegrad/measured_seconds") == [(8, 0.4)]


def test_an_observation_that_knows_no_step_time_yet_has_no_point_of_it():
    untimed = replace(observation(8, 1), step_seconds=0.0, sync_seconds=0.0)
    told, known = ({point.key for point in curve_points(each)} for each in (untimed, observation(8, 1)))
    assert known - told == {"step_seconds", "sync_seconds"}


def test_the_jobs_of_a_sweep_are_runs_of_one_experiment_that_say_what_was_tried(client):
    name = f"swept-{uuid.uuid4().hex[:8]}"
    swept = ("params.width", "batch.base")
    for index in range(2):
        group = Group(id=f"{name}-night", name=name, index=index, swept=swept)
        follow(Story(name=f"{name}-00{index}", group=group).submit(), client)
    experiment = client.get_experiment_by_name(f"elastic/{name}")
    found = client.search_runs([experiment.experiment_id], f"tags.`elastic.group` = '{name}-night'")
    assert sorted(run.data.tags["elastic.group_index"] for run in found) == ["0", "1"]
    assert {run.data.tags["elastic.swept"] for run in found} == {"params.width 32, batch.base null"}
    assert {(run.data.params["params.width"], run.data.params["batch.base"]) for run in found} == {("32", "null")}
    assert not any(key.startswith("group") for run in found for key in run.data.params)


def test_a_job_that_fell_back_to_the_exact_sum_is_tagged_with_why(client):
    story = Story().submit().grant(2)
    fallback = ExchangeFallback(algorithm="bytegrad", reason="the loss is not finite", step=8, at=1.0)
    story.tell(EventKind.EXCHANGE_FELL_BACK, fallback=to_json(fallback))
    follow(story, client)
    (attempt,) = runs(client, story, "attempt")
    for run in (attempt, job_run(client, story)):
        assert run.data.tags["elastic.exchange_fallback"] == fallback_words(fallback)


def test_points_carry_the_time_they_were_measured_at_and_all_series(client):
    story = Story().submit().grant(2).observe(8).commit(8)
    follow(story, client)
    job = job_run(client, story)
    (point,) = client.get_metric_history(job.info.run_id, "loss")
    assert point.timestamp == round((T0 + 100 + 1) * 1000)
    assert {"loss", "learning_rate", "samples", "epoch", "step_seconds", "sync_seconds", "samples_per_second",
            "global_batch", "slots", "noise_scale", "train accuracy _"} <= set(job.data.metrics)  # fmt: skip
    assert job.data.metrics["noise_scale"] == 4.0
    assert job.data.metrics["samples"] == 256


def test_an_attempt_says_what_it_was_given_and_why(client):
    story = Story().submit().grant(3)
    follow(story, client)
    (attempt,) = runs(client, story, "attempt")
    want = {"slots": "3", "nodes": "2", "types": "3xcpu", "global_batch": "96", "start_step": "0", "comm": "allreduce"}
    assert want.items() <= attempt.data.params.items()
    assert attempt.data.params["layout"] == "data=3 tensor=1 pipeline=1"
    assert attempt.data.tags["elastic.reason"] == "3 slots are free"
    assert f"/dags/elastic_segment/runs/{story.segment_id}" in attempt.data.tags["mlflow.note.content"]
    job = job_run(client, story)
    assert attempt.data.tags["mlflow.parentRunId"] == job.info.run_id
    assert {"params.width": "32", "batch.max": "64", "work.samples": "1000"}.items() <= job.data.params.items()


def test_of_a_placed_attempt_what_a_sample_costs_is_shown_as_predicted_and_as_measured(client):
    predicted = {"samples_per_second": 500.0, "price_per_hour": 3.6, "gap": 0.01}
    story = Story().submit().grant(placed=predicted).observe(1).commit(1).grant(attempt=1).observe(2)
    follow(story, client)
    first, second = runs(client, story, "attempt")
    assert first.data.params["predicted.cost_per_million_samples"] == "2.0"
    assert first.data.params["predicted.gap"] == "0.01"
    (observed,) = story.observed[0][1:]
    assert first.data.metrics["cost_per_million_samples"] == pytest.approx(1000.0 / observed.samples_per_second)
    assert "cost_per_million_samples" in job_run(client, story).data.metrics
    assert not [name for name in second.data.metrics if "cost" in name], "that one was not placed"


def test_run_ids_are_written_back_to_the_ledger_once(client):
    story = Story().submit().grant(1).observe(1)
    follow(story, client)
    follow(story, client)
    job = job_run(client, story)
    assert story.results == {"mlflow_run_id": job.info.run_id, "mlflow_experiment_id": job.info.experiment_id}
    assert [event.kind for event in story.log].count(EventKind.RESULTS) == 1


def test_checkpoints_are_ranked_by_their_metric_and_told_when_they_are_gone(client):
    story = Story().submit().grant(2)
    for step, accuracy in ((10, 0.5), (20, 0.9), (30, 0.7)):
        story.observe(step).commit(step, accuracy=accuracy, loss=1 - accuracy)
    uris = [event.payload["checkpoint"]["uri"] for event in story.log if event.kind is EventKind.COMMITTED]
    story.tell(EventKind.CHECKPOINTS_RETIRED, segment=False, uris=uris[:1], why="corrupt: a byte is another")
    follow(story, client)

    ranked = models(client, story, order_by=[{"field_name": "metrics.checkpoint/accuracy", "ascending": False}])
    assert [model.params["step"] for model in ranked] == ["20", "30", "10"]
    best = ranked[0]
    assert best.name == "digits-step-20"
    assert best.status == "READY"
    assert best.params["uri"] == uris[1]
    assert best.params["manifest_sha256"] == f"{20:064x}"
    assert best.params["size_bytes"] == "1020"
    assert best.params["layout"] == "data=2 tensor=1 pipeline=1"
    assert {(m.key, m.value, m.step) for m in best.metrics} >= {("checkpoint/accuracy", 0.9, 20)}
    assert ranked[2].tags["elastic.retired"] == "corrupt: a byte is another"
    assert "elastic.retired" not in best.tags
    outputs = client.get_run(job_run(client, story).info.run_id).outputs.model_outputs
    assert {output.model_id for output in outputs} == {model.model_id for model in ranked}


def test_a_swept_checkpoint_is_gone_from_the_models_however_often_that_is_told(client):
    story = Story().submit().grant(2)
    for step in (10, 20):
        story.observe(step).commit(step, loss=1 / step)
    uris = [event.payload["checkpoint"]["uri"] for event in story.log if event.kind is EventKind.COMMITTED]
    follow(story, client)
    (swept,) = (model for model in models(client, story) if model.params["step"] == "10")
    for _ in range(2):
        story.tell(EventKind.CHECKPOINTS_RETIRED, segment=False, uris=uris[:1], why=SWEPT)
        follow(story, client)
        assert [model.params["step"] for model in models(client, story)] == ["20"]
    with pytest.raises(MlflowException, match="not found"):
        client.get_logged_model(swept.model_id)
    job = job_run(client, story)
    assert points(client, job) == sorted(story.curve.items()), "the curve stays"
    story.acknowledged.clear()  # the tracker is set up anew and reads everything again
    follow(story, client)
    assert [model.params["step"] for model in models(client, story)] == ["20"]


def test_a_segment_without_a_resize_goes_on_in_the_same_curve(client):
    story = Story().submit().grant(1).observe(1, 2).commit(2, final=True).end_segment()
    story.grant(1, handed_over=True).observe(3).commit(3, final=True).end_segment()
    follow(story, client)
    assert [step for step, _ in points(client, job_run(client, story))] == [1, 2, 3]
    assert len(runs(client, story, "attempt")) == 2


def test_an_observation_that_arrives_behind_its_commit_is_not_lost(client):
    story = Story().submit().grant(1).observe(1).commit(3).late(2).late(3).observe(4)
    follow(story, client, page=3)
    assert points(client, job_run(client, story)) == sorted(story.curve.items())
    assert [step for step, _ in points(client, job_run(client, story))] == [1, 2, 3]


def test_what_an_attempt_that_is_over_still_reports_is_not_the_jobs(client):
    story = Story().submit().grant(1).observe(1).commit(1).grant(1, attempt=1)
    story.epoch -= 1
    story.observe(2, 3)
    story.epoch += 1
    story.observe(2).commit(3)
    follow(story, client)
    assert points(client, job_run(client, story)) == sorted(story.curve.items())
    assert [step for step, _ in points(client, job_run(client, story))] == [1, 2]


def test_a_rollback_opens_a_new_parent_run_so_that_no_curve_goes_back(client):
    story = Story().submit().grant(1).observe(1, 2).commit(2).end_segment()
    story.lineage, story.committed_step = 1, 1
    story.grant(2).observe(2, 3).commit(3)
    follow(story, client)
    first, second = runs(client, story, "job")
    if first.data.tags["elastic.lineage"] == "1":
        first, second = second, first
    assert [step for step, _ in points(client, first)] == [1, 2]
    assert [step for step, _ in points(client, second)] == [2, 3]
    assert story.results["mlflow_run_id"] == second.info.run_id


def by_lineage(client, story):
    return {int(run.data.tags["elastic.lineage"]): run for run in runs(client, story, "job")}


@pytest.mark.parametrize("at_once", [True, False])
def test_what_a_rollback_gives_up_trains_no_more(client, at_once):
    """Also where the tracker comes to all of it later, when the ledger is at the last lineage."""
    story = Story().submit().grant(1).observe(1, 2).commit(2)
    if at_once:
        follow(story, client)
    story.lineage, story.committed_step = 1, 1
    story.end_segment(SegmentState.CANCELLED, "cancelled: rolled back to step 1").grant(1).observe(2).commit(2)
    follow(story, client)
    known = by_lineage(client, story)
    assert [known[0].info.status, known[1].info.status] == ["KILLED", "RUNNING"]
    story.lineage = 2  # rolled back once more, and cancelled before it had a slot
    story.end(JobState.CANCELLED)
    follow(story, client)
    assert {run.info.status for run in by_lineage(client, story).values()} == {"KILLED"}


def test_an_end_and_its_results_are_of_the_lineage_that_came_to_them(client):
    story = Story().submit().grant(1).observe(1).commit(1, final=True).end_segment().end()
    story.record_results(story.job_id, {"evaluation": {"accuracy": 0.9}})
    story.lineage = 1  # rolled back, all before the tracker has read it
    story.results.pop("evaluation")
    story.grant(1).observe(1)
    follow(story, client)
    known = by_lineage(client, story)
    assert [known[0].info.status, known[1].info.status] == ["FINISHED", "RUNNING"]
    assert known[0].data.metrics["final/accuracy"] == 0.9
    assert "final/accuracy" not in known[1].data.metrics


@pytest.mark.parametrize(("state", "status"), [(JobState.FAILED, "FAILED"), (JobState.CANCELLED, "KILLED")])
def test_a_job_that_ends_badly_says_so_and_a_revived_one_runs_again(client, state, status):
    story = Story().submit().grant(1).observe(1).end_segment(SegmentState.FAILED).end(state, "ValueError: no")
    follow(story, client)
    job = job_run(client, story)
    assert job.info.status == status
    assert job.data.tags["elastic.error"] == "ValueError: no"
    story.grant(1, attempt=1)
    follow(story, client)
    assert job_run(client, story).info.status == "RUNNING"


def test_a_fork_names_its_parents_checkpoint_and_is_named_by_it(client):
    parent = Story(name="parents").submit().grant(1).observe(10).commit(10).observe(20).commit(20)
    follow(parent, client)
    shown = checkpoint_of(next(event for event in parent.log if event.kind is EventKind.COMMITTED))
    fork = Story(name="forks")
    origin = ForkPoint(
        job_id=parent.job_id, checkpoint_id=shown.checkpoint_id, step=10, samples=320, uri=shown.uri,
        manifest_sha256=shown.manifest_sha256,
    )  # fmt: skip
    fork.results[FORK] = to_json(origin)
    fork.submit().grant(1)
    jobs = SimpleNamespace(
        job=lambda job_id: (parent if job_id == parent.job_id else fork).job(job_id), record_results=fork.record_results
    )
    Follower(fork, MlflowTracker(client, jobs, fork, Settings())).catch_up()

    tags = job_run(client, fork).data.tags
    assert tags["elastic.forked_from.job_id"] == parent.job_id
    assert tags["elastic.forked_from.checkpoint_id"] == str(shown.checkpoint_id)
    assert tags["elastic.forked_from.uri"] == shown.uri
    named = {model.params["step"]: model.tags.get(f"elastic.fork.{fork.job_id}") for model in models(client, parent)}
    assert named == {"10": "from step 10", "20": None}


def test_results_and_notes_are_shown_on_the_job(client):
    story = Story().submit().grant(1)
    story.record_results(story.job_id, {"evaluation": {"accuracy": 0.97}})
    story.record_results(story.job_id, {"registered": "digits v3", "airflow": {"dag_id": "mine", "run_id": "a b"}})
    story.tell(EventKind.NOTE, segment=False, text="a corrupt checkpoint was passed over")
    follow(story, client)
    job = job_run(client, story)
    assert job.data.metrics["final/accuracy"] == 0.97
    assert len(points(client, job, "final/accuracy")) == 1, "told again with the other results"
    assert job.data.tags["elastic.registered"] == "digits v3"
    assert "a corrupt checkpoint was passed over" in job.data.tags.values()
    assert "/dags/mine/runs/a%20b" in job.data.tags["mlflow.note.content"]
    assert f"/plugin/elastic-job?job={story.job_id}" in job.data.tags["mlflow.note.content"]


@pytest.mark.nightly
def test_steps_done_again_after_a_corrupt_checkpoint_are_not_doubled(client):
    story = Story().submit().grant(1).observe(1, 2).commit(2).observe(3, 4).commit(4).end_segment()
    story.grant(1)  # step 4 was corrupt: starts at step 2, and the ledger has step 4 as the furthest
    story.observe(3, 4).observe(5).commit(5)
    follow(story, client)
    assert [step for step, _ in points(client, job_run(client, story))] == [1, 2, 3, 4, 5]


def test_a_loss_that_is_not_a_number_is_a_point_like_any_other(client):
    story = Story().submit().grant(1).observe(1).observe(2, loss=math.nan).observe(3, loss=math.inf).commit(3)
    follow(story, client)
    story.acknowledged.clear()
    follow(story, client)
    steps = [step for step, _ in points(client, job_run(client, story))]
    assert steps == [1, 2, 3]


def test_what_is_of_the_pool_and_of_no_job_is_passed_over(client):
    story = Story().submit().grant(2)
    story.tell(EventKind.POLICY_CHANGED, segment=False, policy="horizon", before="sia")
    changed = replace(story.log.pop(), job_id="")
    story.log.append(changed)
    story.observe(1).commit(1, final=True).end_segment().end()
    follow(story, client)
    assert points(client, job_run(client, story)) == sorted(story.curve.items())
    assert lag(story).events == 0


def test_a_run_that_a_user_deleted_stays_deleted_and_holds_up_nobody(client, caplog):
    story = Story().submit().grant(1).observe(1)
    follow(story, client)
    client.delete_run(job_run(client, story).info.run_id)
    story.observe(2).commit(2)
    other = Story(name=story.name).submit().grant(1).observe(1).commit(1)
    follow(story, client)
    follow(other, client)
    assert runs(client, story, "job") == []
    assert lag(story).events == 0
    assert "not shown" in caplog.text
    assert len(points(client, job_run(client, other))) == 1
