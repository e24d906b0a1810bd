"""Policies in a process of their own: the same plans, and what becomes of a decision without an answer."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from elastic_core.control.ledger.tables import KEPT
from elastic_core.control.plane import LedgerControl, open_control
from elastic_core.control.scheduling.allocator import Allocator, is_due
from elastic_core.control.scheduling.deciders import DecidesHere, InAThread, Pace
from elastic_core.control.scheduling.decision_process import DecisionProcess
from elastic_core.control.scheduling.policy_process import NoAnswer, PolicyFailed, PolicyProcess
from elastic_core.domain import Plan, SegmentState, Snapshot, to_json
from elastic_core.errors import InfrastructureError
from elastic_core.policy import registry
from elastic_core.protocol.trainer import Directive
from elastic_core.settings import Settings
from tests.builders import FACTS, TRAINER_SECRET, FakeClock, Life, a_beat, a_cluster, a_control, a_spec
from tests.control.odd_policies import Odd
from tests.control.scheduling.open_files import many_open_files, no_more_files
from tests.control.scheduling.test_allocator import decisions
from tests.policy.builders import job, nodes, snapshot

COMMAND = (sys.executable, "-m", "tests.control.odd_policies")


def picture(mood: str = "") -> Snapshot:
    return snapshot(nodes(4), job("a", name=mood), job("b", 1.0))


@pytest.fixture(scope="module")
def asked() -> Iterator[PolicyProcess]:
    made = PolicyProcess(seconds=30.0, memory_mb=1024, command=COMMAND)
    yield made
    made.close()


def eventually(condition: Callable[[], object], what: str) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"never in a minute: {what}")


def impatient() -> PolicyProcess:
    return PolicyProcess(seconds=1.0, memory_mb=1024, command=COMMAND)


def test_the_plan_is_the_one_that_the_policy_makes_here(asked: PolicyProcess) -> None:
    assert asked.decide("odd", picture()) == Odd().decide(picture(), Random(picture().version))


def test_one_process_answers_again_and_again_whatever_is_printed(asked: PolicyProcess) -> None:
    child = asked._child
    plans = [asked.decide("odd", picture(mood)) for mood in ("prints", "", "prints")]
    assert plans[0] == plans[2]
    assert child is not None
    assert asked._child is child


def test_what_a_policy_raises_is_told_and_the_process_goes_on(asked: PolicyProcess) -> None:
    with pytest.raises(PolicyFailed, match="ZeroDivisionError: no speed, no share"):
        asked.decide("odd", picture("raises"))
    assert asked.decide("odd", picture()).policy == "odd"


def test_a_policy_that_hangs_is_stopped_at_the_bound_and_the_next_question_is_answered() -> None:
    asked = impatient()
    try:
        asked.decide("odd", picture())
        started = time.monotonic()
        with pytest.raises(NoAnswer, match="odd did not decide within 1 s"):
            asked.decide("odd", picture("hangs"))
        assert time.monotonic() - started < 5.0
        assert asked.decide("odd", picture()).policy == "odd"
    finally:
        asked.close()


def test_a_policy_that_dies_is_told_and_the_next_question_is_answered(asked: PolicyProcess) -> None:
    with pytest.raises(NoAnswer, match="odd did not decide: its process ended with exit code 7"):
        asked.decide("odd", picture("dies"))
    assert asked.decide("odd", picture()).policy == "odd"


def test_the_process_ends_with_its_parent() -> None:
    asked = PolicyProcess(seconds=30.0, memory_mb=1024, command=COMMAND)
    asked.prepare()
    asked.decide("odd", picture())
    child = asked._child
    assert child is not None
    assert child._process.stdin is not None
    child._process.stdin.close()
    assert child._process.wait(timeout=10.0) == 0
    asked.close()


def test_a_policy_that_eats_memory_gets_no_more_than_its_share_and_the_process_goes_on(asked: PolicyProcess) -> None:
    with pytest.raises(PolicyFailed, match="MemoryError"):
        asked.decide("odd", picture("eats"))
    assert asked.decide("odd", picture()).policy == "odd"


def test_it_decides_however_many_files_are_open() -> None:
    asked = PolicyProcess(seconds=30.0, memory_mb=1024, command=COMMAND)
    try:
        with many_open_files():
            assert asked.decide("odd", picture()).policy == "odd"
            child = asked._child
            assert child is not None
            assert child._process.stdout is not None
            assert child._process.stdout.fileno() >= 1024
    finally:
        asked.close()


def test_one_that_the_system_cannot_start_gives_no_answer_and_the_next_question_is_answered() -> None:
    asked = PolicyProcess(seconds=30.0, memory_mb=1024, command=COMMAND)
    try:
        with no_more_files(), pytest.raises(NoAnswer, match=r"cannot be started: OSError: .* Too many open files"):
            asked.decide("odd", picture())
        assert asked.decide("odd", picture()).policy == "odd"
    finally:
        asked.close()


def test_one_that_cannot_be_heard_is_stopped_and_the_next_question_is_answered() -> None:
    asked = PolicyProcess(seconds=30.0, memory_mb=1024, command=COMMAND)
    try:
        asked.decide("odd", picture())
        child = asked._child
        assert child is not None
        assert child._process.stdout is not None
        child._process.stdout.close()
        with pytest.raises(NoAnswer, match="odd did not decide: ValueError"):
            asked.decide("odd", picture())
        assert child._process.poll() is not None
        assert asked.decide("odd", picture()).policy == "odd"
    finally:
        asked.close()


@pytest.mark.nightly
def test_who_closes_it_does_not_wait_for_a_policy_that_hangs() -> None:
    asked = PolicyProcess(seconds=600.0, memory_mb=1024, command=COMMAND)
    asked.decide("odd", picture())
    told: list[str] = []

    def ask() -> None:
        try:
            asked.decide("odd", picture("hangs"))
        except NoAnswer as error:
            told.append(str(error))

    thread = Thread(target=ask)
    thread.start()
    eventually(lambda: asked._lock.locked(), "the question is asked")
    asked.close()
    thread.join(timeout=60.0)
    assert told == ["odd did not decide: its process ended with exit code -9"]


@pytest.fixture(scope="module")
def real() -> Iterator[PolicyProcess]:
    made = PolicyProcess(seconds=60.0, memory_mb=4096)
    yield made
    made.close()


@pytest.mark.parametrize("policy", registry.names())
def test_every_policy_makes_the_same_plan_there_as_here_and_remembers_the_same(
    real: PolicyProcess, policy: str
) -> None:
    first = snapshot(nodes(4), job("a"), job("b", 1.0))
    here, there = DecidesHere().decide(policy, first), real.decide(policy, first)
    assert to_json(there) == to_json(here)
    second = replace(first, now=first.now + 60.0, version=first.version + 1, policy_state=here.state)
    assert to_json(real.decide(policy, second)) == to_json(DecidesHere().decide(policy, second))


@pytest.fixture
def plane(
    ledger_url: str, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], LedgerControl]]:
    """A control plane whose policy's process is in the mood given."""
    monkeypatch.setattr(registry, "get", lambda name, known=registry.get: Odd() if name == "odd" else known(name))
    made = a_control(ledger_url, tmp_path, clock, policy="odd")
    made.set_cluster(a_cluster())

    def in_mood(mood: str) -> LedgerControl:
        monkeypatch.setitem(os.environ, "ODD", mood)
        made.allocator.close()
        made.allocator = Allocator(made._ledger, made.settings, decider=impatient())
        return made

    yield in_mood
    made.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mood", ["hangs", "dies"])
def test_without_an_answer_the_last_plan_stays_once_and_the_ledger_says_so(
    plane: Callable[[str], LedgerControl], ledger_url: str, mood: str
) -> None:
    control = plane("")
    control.submit("job-a", a_spec(), FACTS)
    assert control.acquire("job-a__seg_0").state is SegmentState.GRANTED
    held = control.snapshot().jobs[0].allocation
    control = plane(mood)
    control.submit("job-b", a_spec(), FACTS)
    assert control.acquire("job-b__seg_0").state is SegmentState.WAITING
    (*_, (policy, wanted, failure, number)) = decisions(ledger_url, "policy", "wanted", "failure", "id")
    assert (policy, wanted) == (KEPT, "odd")
    assert "odd did not decide" in str(failure)
    assert control.snapshot().jobs[0].allocation == held
    assert "the last plan, which stays, does not know it" in control.explain("job-b").reason
    assert control.replay(int(str(number))).same
    control.decide("once more")
    (*_, (policy, wanted)) = decisions(ledger_url, "policy", "wanted")
    assert (policy, wanted) == ("fair_share", "odd")


class Eventful(PolicyProcess):
    """While it waits for the policy, something happens."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__(seconds=1.0, memory_mb=1024, command=COMMAND)
        self.happens, self.asked = happens, 0

    def decide(self, policy: str, snapshot: Snapshot) -> Plan:
        self.asked += 1
        self.happens()
        return super().decide(policy, snapshot)


@pytest.mark.nightly
def test_a_silent_policy_costs_one_deadline_whatever_happens_meanwhile_and_what_happened_is_decided_after_it(
    plane: Callable[[str], LedgerControl], ledger_url: str
) -> None:
    control = plane("")
    control.submit("job-a", a_spec(), FACTS)
    assert control.acquire("job-a__seg_0").state is SegmentState.GRANTED
    control = plane("hangs")
    later: list[Callable[[], None]] = []
    eventful = Eventful(lambda: control._ledger.change(lambda tx: setattr(tx, "trigger", "an event")))
    control.allocator.close()
    control.allocator = Allocator(control._ledger, control.settings, decider=eventful, aside=later.append)
    control.submit("job-b", a_spec(), FACTS)
    assert control.acquire("job-b__seg_0").state is SegmentState.WAITING
    assert eventful.asked == 1
    assert decisions(ledger_url, "policy", "wanted")[-1] == (KEPT, "odd")
    assert control._ledger.read(is_due)
    eventful.happens = lambda: None
    (rest,) = later
    rest()
    assert eventful.asked == 2
    assert decisions(ledger_url, "policy", "wanted")[-1] == ("fair_share", "odd"), "the last plan stays once"
    assert not control._ledger.read(is_due)


class Thinking(DecidesHere):
    """Decides when it is told to."""

    def __init__(self) -> None:
        self.asked, self.told = Event(), Event()

    def decide(self, policy: str, snapshot: Snapshot) -> Plan:
        self.asked.set()
        assert self.told.wait(60.0)
        return super().decide(policy, snapshot)


def test_heartbeats_are_answered_while_a_policy_hangs_and_the_plan_in_force_goes_on(
    plane: Callable[[str], LedgerControl],
) -> None:
    control = plane("")
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    thinking = Thinking()
    control.allocator, control.aside = Allocator(control._ledger, control.settings, decider=thinking), InAThread()
    control._ledger.change(lambda tx: setattr(tx, "trigger", "an event that a crash left undecided"))
    trainer = control.trainer(order.token)
    answers = [trainer.heartbeat(a_beat(step)) for step in range(3)]
    assert thinking.asked.wait(60.0)
    answers.append(trainer.heartbeat(a_beat(3)))
    assert {answer.directive for answer in answers} == {Directive.GO_ON}
    assert control._ledger.read(is_due)
    assert control.snapshot().jobs[0].allocation == order.allocation
    thinking.told.set()
    eventually(lambda: not control._ledger.read(is_due), "it is decided")


def test_what_a_person_asks_for_is_answered_while_a_policy_thinks_and_decided_on_afterwards(
    plane: Callable[[str], LedgerControl],
) -> None:
    control = plane("")
    control.submit("job-a", a_spec(), FACTS)
    Life(control, control.trainer, "job-a").start()
    thinking = Thinking()
    control.allocator = Allocator(control._ledger, control.settings, decider=thinking, aside=InAThread())
    assert control.pause("job-a", "lunch").paused is not None
    assert thinking.asked.wait(60.0)
    assert control.resume("job-a").paused is None
    before = control.decisions(1)[0].decision_id
    thinking.told.set()
    eventually(lambda: not control._ledger.read(is_due), "it is decided")
    assert control.decisions(1)[0].decision_id > before


def test_where_nothing_else_goes_on_a_person_is_answered_when_it_is_decided(
    plane: Callable[[str], LedgerControl],
) -> None:
    control = plane("")
    control.allocator = Allocator(control._ledger, control.settings, aside=InAThread())
    control.submit("job-a", a_spec(), FACTS)
    Life(control, control.trainer, "job-a").start()
    control.pause("job-a", "lunch")
    assert not control._ledger.read(is_due)
    resumed = control.resume("job-a")
    assert not control._ledger.read(is_due)
    assert "lunch" not in resumed.target_reason


def test_where_jobs_are_no_few_a_person_is_answered_at_once(
    plane: Callable[[str], LedgerControl], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else this would never end."""
    monkeypatch.setattr("elastic_core.control.scheduling.allocator.ANSWERED_AFTER", math.inf)
    control = plane("")
    control.submit("job-a", a_spec(), FACTS)
    Life(control, control.trainer, "job-a").start()
    thinking = Thinking()
    control.allocator = Allocator(control._ledger, control.settings, decider=thinking, aside=InAThread())
    control.allocator._pace.note(time.monotonic(), Pace.FEW_JOBS)
    assert control.pause("job-a", "lunch").paused is not None
    thinking.told.set()
    eventually(lambda: not control._ledger.read(is_due), "it is decided")


def test_of_what_is_the_same_one_is_queued_aside_and_a_failure_ends_nothing() -> None:
    aside, begun, go_on, done = InAThread(), Event(), Event(), list[str]()

    def holds() -> None:
        begun.set()
        assert go_on.wait(60.0)

    def counts() -> None:
        done.append("counted")

    def fails() -> None:
        raise InfrastructureError("no database")

    aside(holds)
    assert begun.wait(60.0)
    for work in (fails, counts, counts, counts):
        aside(work)
    go_on.set()
    eventually(lambda: done == ["counted"], "what came meanwhile is done, once")
    aside(counts)
    eventually(lambda: len(done) == 2, "and what comes later")


def test_the_control_plane_of_production_asks_in_a_process_lets_no_heartbeat_wait_and_has_one_for_many_jobs(
    ledger_url: str, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, ledger_url=ledger_url)
    settings.secret_file("trainer").parent.mkdir(parents=True)
    settings.secret_file("trainer").write_bytes(TRAINER_SECRET)
    settings.secret_file("trainer").chmod(0o600)
    control = open_control(settings)
    try:
        assert isinstance(control.allocator._decider, PolicyProcess)
        assert isinstance(control.aside, InAThread)
        assert isinstance(control.allocator._process, DecisionProcess)
    finally:
        control.close()
