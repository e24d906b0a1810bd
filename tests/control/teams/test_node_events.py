"""What happened to nodes: whoever did it, once each, with the reason."""

from __future__ import annotations

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.errors import Forbidden
from elastic_core.protocol.callers import Caller, Way
from tests.builders import FACTS, FakeClock, Life, a_cluster, a_spec


def told(control: LedgerControl, since: float = 0.0) -> list[tuple[str, str, str]]:
    return [(event.node, event.what, event.why) for event in control.node_events(since)]


def test_what_an_operator_did_is_on_record_also_after_it_was_undone(control: LedgerControl, clock: FakeClock) -> None:
    ann = control.acting(Caller(name="ann", way=Way.PAGE, unrestricted=True))
    ann.set_aside_node("node-a", "it is hot")
    clock.now += 60
    ann.take_back_node("node-a")
    clock.now += 60
    since = control.now()
    ann.set_aside_node("node-a", "it is hot again")
    assert told(control) == [
        ("node-a", "set aside", "it is hot, by ann"),
        ("node-a", "taken back", "by ann"),
        ("node-a", "set aside", "it is hot again, by ann"),
    ]
    assert told(control, since) == [("node-a", "set aside", "it is hot again, by ann")]
    assert [event.what for event in control.node_events(0.0, since - 60)] == ["set aside", "taken back"]


def test_what_the_platform_did_by_itself_is_told_as_well(control: LedgerControl) -> None:
    control.set_aside_node("node-b", "jobs fail on it")
    assert told(control) == [("node-b", "set aside", "jobs fail on it, by the operator")]


def test_a_refusal_is_no_event(control: LedgerControl) -> None:
    with pytest.raises(Forbidden):
        control.acting(Caller(name="bob", way=Way.PAGE)).set_aside_node("node-a", "because")
    assert told(control) == []


def test_a_node_that_left_under_a_job_was_lost(control: LedgerControl, clock: FakeClock) -> None:
    control.submit("job-a", a_spec(slots=(4, 4)), FACTS)
    Life(control, control.trainer, "job-a").start()
    clock.now += 30
    control.set_cluster(a_cluster({"node-a": 2}))
    (event,) = control.node_events(0.0)
    assert (event.at, event.node, event.what) == (control.now(), "node-b", "lost")
    assert event.why.endswith("held by job-a")
