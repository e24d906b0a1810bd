"""Questions that a policy has to work for, of policies that hang or hoard: the API server is not held up by any."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from threading import Thread

import httpx
import pytest
from fastapi import FastAPI

from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc import whatif
from elastic_core.control.rpc.http_api import create_app
from elastic_core.control.scheduling.policy_process import PolicyProcess
from elastic_core.policy import registry
from elastic_core.protocol.rest.what_if import AddedNodes, WhatIf
from elastic_core.sim import projection
from tests.builders import CONTROL_SECRET, FACTS, Life, a_spec
from tests.control.odd_policies import Odd
from tests.control.scheduling.test_policy_process import COMMAND
from tests.control.serving import served

JSON = {"content-type": "application/json", "authorization": "Bearer reader"}


@pytest.fixture
def asked_of_odd(control: LedgerControl, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A control API with two jobs, one of which runs; it asks policies that misbehave if `ODD` says so."""
    monkeypatch.setattr(registry, "get", lambda name, known=registry.get: Odd() if name == "odd" else known(name))
    monkeypatch.setattr(whatif, "COMMAND", (*COMMAND, "what-if"))
    monkeypatch.setattr(whatif, "SECONDS", 2.0)
    control.submit("job-a", a_spec(slots=(4, 4)), FACTS)
    Life(control, control.trainer, "job-a").start()
    control.submit("job-b", a_spec(slots=(4, 4)), FACTS)
    control.acquire("job-b__seg_0")
    control.set_policy("odd")
    control.settings = control.settings.model_copy(update={"decide_memory_mb": 1024})
    replays = control._replays = PolicyProcess(seconds=2.0, memory_mb=1024, command=COMMAND)

    def anybody() -> None:
        pass

    app: FastAPI = create_app(control, service_secret=CONTROL_SECRET, user_reads=anybody, user_writes=anybody)
    with served(app) as url:
        yield url
    replays.close()


Question = Callable[[str], httpx.Response]


def past(url: str) -> httpx.Response:
    return httpx.get(f"{url}/ui/whatif", params={"policy": "odd"}, timeout=240)


def ahead(url: str) -> httpx.Response:
    return httpx.post(f"{url}/api/v1/what-if", json={"policy": "odd"}, headers=JSON, timeout=240)


def replayed(url: str) -> httpx.Response:
    newest = httpx.get(f"{url}/api/v1/decisions", params={"limit": 1}).json()[0]["decision_id"]
    return httpx.get(f"{url}/api/v1/decisions/{newest}/replay", timeout=240)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("question", [past, ahead])
@pytest.mark.parametrize(
    ("mood", "says"),
    [
        ("hangs", "the simulation did not end within 2 s and was stopped. It may take 2 s and 1024 MiB"),
        ("eats", "needs more memory than ELASTIC_DECIDE_MEMORY_MB gives it"),
        ("dies", "the simulation did not end: its process ended with exit code 7"),
    ],
)
def test_a_simulation_is_ended_in_words_whatever_its_policy_does(
    asked_of_odd: str, monkeypatch: pytest.MonkeyPatch, question: Question, mood: str, says: str
) -> None:
    monkeypatch.setitem(os.environ, "ODD", mood)
    if mood == "eats":
        monkeypatch.setattr(whatif, "SECONDS", 240.0)
    answer = question(asked_of_odd)
    assert answer.status_code == 422, answer.text
    assert says in answer.json()["message"]


@pytest.mark.nightly
def test_a_replay_of_a_policy_that_hangs_is_ended_and_holds_no_transaction(
    asked_of_odd: str, control: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert replayed(asked_of_odd).json()["same"]
    control._replays.close()
    monkeypatch.setitem(os.environ, "ODD", "hangs")
    hanging = control._replays = PolicyProcess(seconds=5.0, memory_mb=1024, command=COMMAND)
    answers: list[httpx.Response] = []
    thread = Thread(target=lambda: answers.append(replayed(asked_of_odd)))
    thread.start()
    while not hanging._lock.locked():  # the policy is asked
        time.sleep(0.01)
    while thread.is_alive():
        assert control._ledger._engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        time.sleep(0.05)
    assert answers[0].status_code == 503
    assert "odd did not decide within 5 s and was stopped" in answers[0].json()["message"]
    assert httpx.get(f"{asked_of_odd}/api/v1/jobs").status_code == 200
    hanging.close()


@pytest.mark.nightly
def test_while_one_simulates_the_next_is_told_to_come_again(asked_of_odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "ODD", "hangs")
    thread = Thread(target=past, args=(asked_of_odd,))
    thread.start()
    while not whatif._answering.locked():
        time.sleep(0.01)
    for question in (past, ahead, replayed):
        answer = question(asked_of_odd)
        assert (answer.status_code, answer.json()["code"]) == (429, "conflict")
        assert "ask again in a moment" in answer.json()["message"]
    thread.join()


def test_the_process_gives_the_answer_that_is_given_here(control: LedgerControl) -> None:
    for job_id in ("job-a", "job-b"):
        control.submit(job_id, a_spec(slots=(4, 4)), FACTS)
        control.acquire(f"{job_id}__seg_0")
    asked = WhatIf(policy="fixed", add=(AddedNodes(type="cpu", num_slots=2, count=2),))
    here, there = projection.what_if(control, asked), whatif.ahead(control, asked)
    assert (there.jobs, there.notes, there.complete, there.at) == (here.jobs, here.notes, here.complete, here.at)


def test_the_process_of_a_question_is_gone_with_the_answer(asked_of_odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    class Seen(whatif.Child):
        def __init__(self, command: tuple[str, ...]) -> None:
            super().__init__(command)
            started.append(self._process.pid)

    monkeypatch.setattr(whatif, "Child", Seen)
    monkeypatch.setattr(whatif, "SECONDS", 30.0)
    assert ahead(asked_of_odd).status_code == 200
    (pid,) = started
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
