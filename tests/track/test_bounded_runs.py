"""A run in MLflow stays of a size that MLflow answers for, whatever names a job's code makes up. Against a database of
MLflow's in a file, without a server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from elastic_core.domain import to_json
from elastic_core.protocol.events import EventKind
from elastic_core.settings import Settings
from elastic_core.track import mlflow_runs
from elastic_core.track.follow import Follower
from elastic_core.track.mlflow_tracker import MlflowTracker
from elastic_core.track.tracker import TookTooLong
from tests.track.story import Story, observation


class Asked(MlflowClient):
    """Counts how often a run is asked for with all that it has."""

    runs_read = 0

    def get_run(self, run_id: str) -> Any:
        type(self).runs_read += 1
        return super().get_run(run_id)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def client(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.chdir(tmp_path)  # below which MLflow puts artifacts
    monkeypatch.setattr(Asked, "runs_read", 0)
    return Asked(database)


def follow(client: MlflowClient, story: Story) -> None:
    """A service that has just been started, to the end."""
    settings = Settings(mlflow_uri="http://mlflow.example")  # artifacts may be anywhere
    Follower(story, MlflowTracker(client, story, story, settings)).catch_up()


def told(story: Story, step: int, **metrics: float) -> Story:
    one = replace(observation(step, story.epoch), metrics=metrics)
    return story.tell(EventKind.OBSERVED, observations=[to_json(one)])


def job_run(client: MlflowClient, story: Story) -> Any:
    return MlflowClient.get_run(client, story.results["mlflow_run_id"])


def test_names_of_metrics_beyond_so_many_of_a_run_are_left_out_which_a_tag_says_also_by_who_starts_anew(
    client: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_runs, "MOST_METRICS", 40)
    story = Story(name="names").submit().grant(1)
    for step in range(1, 9):
        told(story, step, **{f"step {step} number {n}": 1.0 for n in range(10)}).commit(step)
        follow(client, story)
    run = job_run(client, story)
    assert len(run.data.metrics) == 40
    assert "step 1 number 9" in run.data.metrics
    assert "step 8 number 0" not in run.data.metrics
    assert "names beyond 40 of metrics" in run.data.tags["elastic.left_out"]
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in history] == list(range(1, 9)), "names that it has go on"


def test_notes_beyond_so_many_tags_of_a_run_are_left_out(client: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_runs, "MOST_TAGS", 30)
    story = Story(name="notes").submit()
    for number in range(60):
        story.tell(EventKind.NOTE, segment=False, text=f"note {number}")
    follow(client, story)
    tags = job_run(client, story).data.tags
    notes = [value for name, value in tags.items() if name.startswith("elastic.note.")]
    assert "note 0" in notes
    assert 10 < len(notes) < 30
    assert len(tags) < 35
    assert "30 of tags" in tags["elastic.left_out"]


def test_no_commit_asks_for_all_that_its_run_has_unless_it_comes_again(client: Asked) -> None:
    story = Story(name="outputs").submit().grant(1)
    for step in range(1, 5):
        story.observe(step).commit(step, acc=0.5)
    follow(client, story)
    story.end()
    follow(client, story)
    assert Asked.runs_read == 0
    outputs = job_run(client, story).outputs.model_outputs
    assert sorted(output.step for output in outputs) == [1, 2, 3, 4]
    (model,) = client.search_logged_models([job_run(client, story).info.experiment_id], "params.step = '4'")
    runs = mlflow_runs.Runs(client, proxied_only=False)
    again = next(output for output in outputs if output.model_id == model.model_id)
    runs._log_output(mlflow_runs.Run(job_run(client, story).info.run_id, ""), again)
    assert len(job_run(client, story).outputs.model_outputs) == 4


def test_an_end_is_shown_of_the_lineage_that_was_given_up(client: Asked) -> None:
    story = Story(name="lineages").submit().grant(1).observe(1).commit(1)
    follow(client, story)
    before = story.results["mlflow_run_id"]
    story.lineage = 1
    story.grant(1).observe(2).commit(2).end()
    follow(client, story)
    assert Asked.runs_read == 0
    assert MlflowClient.get_run(client, before).info.status == "KILLED"


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            connected = []
            with suppress(OSError):
                while True:
                    connected.append(server.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_a_server_that_gives_no_answer_took_too_long_and_does_not_answer(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    story = Story().submit().grant(1).observe(1)
    tracker = MlflowTracker(MlflowClient(silent), story, story, Settings())
    with pytest.raises(TookTooLong, match="in time"):
        Follower(story, tracker).step()
    assert not tracker.answers(story.log[0])
    assert story.acknowledged == {}
