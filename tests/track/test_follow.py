"""Nothing is lost and nothing is doubled, whatever dies and whenever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from elastic_core.domain import SegmentState
from elastic_core.errors import InfrastructureError
from elastic_core.protocol.events import MLFLOW_READER as READER
from elastic_core.settings import Settings
from elastic_core.track.follow import Follower, lag, serve
from elastic_core.track.mlflow_tracker import MlflowTracker
from elastic_core.track.tracker import NoTracker
from tests.track.mlflow_server import MlflowServer
from tests.track.story import Story
from tests.track.test_mlflow_tracker import job_run, models, points, runs

pytestmark = pytest.mark.e2e


class Killed(BaseException):
    """The follower's process dies here."""


class Faults:
    """Wraps an object: call number n fails before or after it was carried out, or kills the process there."""

    def __init__(self, inner: Any, faults: Iterator[str], only: tuple[str, ...] = ()) -> None:
        self._inner, self._faults, self._only = inner, faults, only

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value) or (self._only and name not in self._only):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            fault = next(self._faults, "")
            if "before" in fault:
                self._raise(fault)
            result = value(*args, **kwargs)
            if "after" in fault:
                self._raise(fault)
            return result

        return call

    @staticmethod
    def _raise(fault: str) -> None:
        if fault.startswith("killed"):
            raise Killed
        raise MlflowException("the server is away")


KINDS = ["error before", "error after", "killed before", "killed after"]
# Which calls fail, by their number: far apart as well, so that a page gets to its last call and fails there.
FAULTS = st.dictionaries(st.integers(0, 80), st.sampled_from(KINDS), min_size=1, max_size=8)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Segments of attempts that observe and commit, crash, and start again from what was committed."""
    story = Story(name="law").submit()
    for _ in range(draw(st.integers(1, 2))):
        for attempt in range(draw(st.integers(1, 2))):
            story.grant(draw(st.integers(1, 4)), attempt=attempt)
            step = story.committed_step
            for _ in range(draw(st.integers(1, 3))):
                reported = draw(st.integers(1, 3))
                story.observe(*range(step + 1, step + reported + 1))
                step += reported
                if draw(st.booleans()):
                    story.commit(step - draw(st.integers(0, 1)) if step - 1 > story.committed_step else step, acc=0.5)
            story.end_segment(draw(st.sampled_from([SegmentState.COMMITTED, SegmentState.WAITING])))
    return story.end()


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],  # every example talks to a server: shrinking one takes minutes
)  # fmt: skip
@given(story=stories(), faults=FAULTS, page=st.integers(1, 20))
def test_any_faults_and_crashes_give_the_same_curves(client: MlflowClient, story: Story, faults, page):
    pending = (faults.get(number, "") for number in count())
    flaky = Faults(client, pending)
    feed = Faults(story, pending, only=("acknowledge",))
    follower = None
    for _ in range(200):
        # a killed follower starts with nothing in memory; one that saw an error goes on with what it knows
        follower = follower or Follower(feed, MlflowTracker(flaky, story, feed, Settings()), page=page)
        try:
            if follower.step() == 0:
                break
        except Killed:
            follower = None
        except (InfrastructureError, MlflowException):
            pass
    else:
        pytest.fail("never caught up")

    job = job_run(client, story)
    assert points(client, job) == sorted(story.curve.items())
    attempts = {run.data.params["epoch"]: run for run in runs(client, story, "attempt")}
    assert len(attempts) == len(runs(client, story, "attempt")) == story.epoch
    for epoch in range(1, story.epoch + 1):
        want = sorted((o.step, o.loss) for e, o in story.observed if e == epoch)
        assert points(client, attempts[str(epoch)]) == want
    checkpoints = [event for event in story.log if event.kind == "committed"]
    found = models(client, story)
    assert sorted(m.params["uri"] for m in found) == sorted(e.payload["checkpoint"]["uri"] for e in checkpoints)
    assert all(m.status == "READY" for m in found)
    assert job.info.status == "FINISHED"


def test_mlflow_killed_in_the_middle_and_started_again_has_everything_once(mlflow_server: MlflowServer, client):
    story = Story(name="killed").submit().grant(2)
    for step in range(1, 120, 3):
        story.observe(step, step + 1, step + 2).commit(step + 2, acc=step / 100)
    follower = Follower(story, MlflowTracker(client, story, story, Settings()), page=7)
    stop = threading.Event()
    thread = threading.Thread(target=serve, args=(follower, stop, 0.05))
    thread.start()
    try:
        while lag(story).events > 60:
            stop.wait(0.01)
        mlflow_server.kill()
        acknowledged = story.position(READER)
        stop.wait(0.5)
        assert story.position(READER) - acknowledged <= 7 * 3, "acknowledged a page that MLflow never took"
        assert lag(story).events > 0
        mlflow_server.start()
        while lag(story).events:
            assert thread.is_alive()
            stop.wait(0.05)
    finally:
        stop.set()
        thread.join(30)
    assert points(client, job_run(client, story)) == sorted(story.curve.items())
    assert len(models(client, story)) == 40
    assert len(runs(client, story, "attempt")) == 1


def test_nothing_is_acknowledged_while_mlflow_is_away():
    story = Story().submit().grant(1).observe(1)
    tracker = MlflowTracker(MlflowClient("http://127.0.0.1:9"), story, story, Settings())
    with pytest.raises(InfrastructureError, match="MLflow could not"):
        Follower(story, tracker).step()
    assert story.acknowledged == {}
    assert lag(story).events == len(story.log)


def test_lag_counts_what_is_not_acknowledged_and_how_old_it_is():
    story = Story().submit().grant(1).observe(1)
    assert lag(story).events == 3
    assert lag(story).seconds(now=story.log[0].at + 60) == 60
    Follower(story, NoTracker()).catch_up()
    assert lag(story).events == 0
    assert lag(story).seconds(now=1e12) == 0


def test_memory_holds_one_page_however_far_behind(client):
    story = Story().submit().grant(1)
    seen = []

    class Counting(NoTracker):
        def record(self, events):
            seen.append(len(events))

    for step in range(1, 1000):
        story.observe(step)
    assert Follower(story, Counting(), page=100).catch_up() == 1001
    assert max(seen) == 100


def test_serving_waits_out_a_fault_and_goes_on():
    story, stop, failures = Story().submit(), threading.Event(), iter([True, True, False])

    class Flaky(NoTracker):
        def record(self, events):
            if next(failures):
                raise InfrastructureError("away")
            stop.set()

    with suppress(StopIteration):
        serve(Follower(story, Flaky()), stop, poll_seconds=0.01)
    assert lag(story).events == 0


@pytest.mark.nightly
def test_an_mlflow_that_was_set_up_anew_gets_all_that_comes_from_then_on(mlflow_server: MlflowServer, client):
    story = Story(name="anew").submit().grant(1).observe(1).commit(1)
    follower = Follower(story, MlflowTracker(client, story, story, Settings()))
    follower.catch_up()
    mlflow_server.kill()
    (mlflow_server.folder / "mlflow.db").unlink()
    mlflow_server.start()
    story.observe(2, 3).commit(3)
    follower.catch_up()
    assert lag(story).events == 0
    assert points(client, job_run(client, story)) == [(2, story.curve[2]), (3, story.curve[3])]
    assert story.results["mlflow_run_id"] == job_run(client, story).info.run_id


@pytest.mark.parametrize("answer", [b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", b""], ids=["errors", "silence"])
def test_a_server_that_answers_with_errors_or_not_at_all_acknowledges_nothing(answer, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve_badly() -> None:
            open_ones = []
            with suppress(OSError):  # closed: the test is over
                while True:
                    open_ones.append(server.accept()[0])
                    open_ones[-1].recv(65536)
                    open_ones[-1].sendall(answer)

        threading.Thread(target=serve_badly, daemon=True).start()
        story = Story().submit().grant(1).observe(1)
        client = MlflowClient(f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(InfrastructureError, match="MLflow could not open experiment"):
            Follower(story, MlflowTracker(client, story, story, Settings())).step()
        assert story.acknowledged == {}
        server.shutdown(socket.SHUT_RDWR)
