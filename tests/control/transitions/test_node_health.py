"""Nodes that get no jobs: by a user's word or by what happened on them, and how what runs there leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom
from sqlalchemy import create_engine, text

from elastic_core.control.plane import LedgerControl
from elastic_core.control.transitions.node_health import (
    CHANCE,
    PRIOR_FAILED,
    PRIOR_WELL,
    REPEATED,
    WINDOW_SECONDS,
    Tried,
    blamed,
    chance_of,
    is_more_than_chance,
)
from elastic_core.control.transitions.retention import EVERY_SECONDS
from elastic_core.domain import SegmentState
from elastic_core.errors import NotFound, UserError
from elastic_core.protocol.callers import Caller, Way
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.protocol.trainer import Directive
from tests.builders import FACTS, FakeClock, Life, a_beat, a_cluster, a_commit, a_control, a_spec, an_observation

POLICIES = ("fair_share", "horizon", "srtf")


def nodes_of(order: LaunchOrder) -> set[str]:
    return {slot.node for slot in order.allocation.slots}


def a_life(control: LedgerControl, job_id: str, slots: tuple[int, int], user: str | None = None) -> Life:
    caller = None if user is None else Caller(name=user, way=Way.REST)
    control.acting(caller).submit(job_id, a_spec(job_id, slots=slots), FACTS)
    return Life(control, control.trainer, job_id)


def aside(control: LedgerControl) -> dict[str, str | None]:
    return {node.name: node.set_aside_reason for node in control.nodes() if node.set_aside_at is not None}


def held(url: str) -> list[str]:
    engine = create_engine(url)
    with engine.connect() as connection:
        slots = connection.execute(text("SELECT slot FROM lease_slots WHERE released_at IS NULL ORDER BY slot"))
        found = [slot for (slot,) in slots]
    engine.dispose()
    return found


# by a user


def test_a_node_that_is_set_aside_gets_no_slots_and_says_why(control: LedgerControl) -> None:
    status = control.set_aside_node("node-a", "  its fan is broken ")
    assert (status.set_aside_by, status.set_aside_reason, status.present) == ("the operator", "its fan is broken", True)
    order = a_life(control, "job-a", (1, 4)).start()
    assert nodes_of(order) == {"node-b"}
    assert control.snapshot().capacity() == {"cpu": 2}
    (away,) = [node for node in control.snapshot().nodes if node.name == "node-a"]
    assert (away.present, away.set_aside) == (False, "its fan is broken")
    assert control.explain("job-a").reason


def test_a_job_shrinks_away_from_it_in_place_and_grows_back(
    control: LedgerControl, clock: FakeClock, ledger_url: str
) -> None:
    life = a_life(control, "job-a", (1, 4))
    order = life.start()
    trainer = control.trainer(order.token)
    assert nodes_of(order) == {"node-a", "node-b"}
    control.set_aside_node("node-a", "memory errors")
    answer = trainer.heartbeat(a_beat(1))
    assert answer.directive is Directive.BOUNDARY
    assert "leaves node-a, set aside" in answer.reason
    assert {slot.node for slot in answer.slots} == {"node-b"}
    went_on = trainer.commit(a_commit(order, 2, final=True, ready=()))
    assert went_on.order is not None
    assert nodes_of(went_on.order) == {"node-b"}
    assert held(ledger_url) == ["node-a:0", "node-a:1", "node-b:0", "node-b:1"], "its processes are still there"
    of_node_a = [slot for slot in order.allocation.slots if slot.node == "node-a"]
    control.trainer(order.agent_token).release_slots(of_node_a, went_on.order.epoch)
    assert held(ledger_url) == ["node-b:0", "node-b:1"]
    other = a_life(control, "job-b", (1, 1))
    control.acquire(other.segment_id())
    assert not any(slot.startswith("node-a") for slot in held(ledger_url))
    clock.advance(1)
    control.take_back_node("node-a")
    assert control.segment(other.segment_id()).allocation is not None
    assert {slot.partition(":")[0] for slot in held(ledger_url)} == {"node-a", "node-b"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_of_a_fixed_size_moves_at_a_boundary(
    ledger_url: str, tmp_path: Path, clock: FakeClock, policy: str
) -> None:
    control = a_control(ledger_url, tmp_path, clock, policy=policy, use_predictors=False)
    control.set_cluster(a_cluster())
    life = a_life(control, "job-a", (2, 2))
    order = life.start()
    (there,) = nodes_of(order)
    control.set_aside_node(there, "memory errors")
    answer = control.trainer(order.token).heartbeat(a_beat(1))
    assert answer.directive is Directive.BOUNDARY
    assert control.trainer(order.token).commit(a_commit(order, 2, final=True, ready=())).order is None
    life.leave(order)
    assert nodes_of(life.start(2)) == {"node-a", "node-b"} - {there}
    control.close()


def test_a_job_stays_until_there_is_room_elsewhere(control: LedgerControl, clock: FakeClock) -> None:
    first, second = a_life(control, "job-a", (2, 2)), a_life(control, "job-b", (2, 2))
    a, b = first.start(), second.start()
    (there,) = nodes_of(a)
    control.set_aside_node(there, "memory errors")
    assert control.trainer(a.token).heartbeat(a_beat(1)).directive is Directive.GO_ON
    assert f"stays on {there}, set aside, until 2 slots are free elsewhere" in control.job("job-a").target_reason
    assert control.trainer(b.token).heartbeat(a_beat(1)).directive is Directive.BOUNDARY, "the later job makes room"
    control.trainer(b.token).commit(a_commit(b, 2, final=True))
    second.leave(b)
    assert control.trainer(a.token).heartbeat(a_beat(2)).directive is Directive.BOUNDARY
    control.trainer(a.token).commit(a_commit(a, 3, final=True))
    first.leave(a)
    control.acquire(second.segment_id())
    assert nodes_of(first.start(3)) == nodes_of(b)
    assert control.segment(second.segment_id()).state is SegmentState.WAITING
    clock.advance(1)
    control.take_back_node(there)
    assert nodes_of(second.start(2)) == {there}


def test_a_boundary_of_its_own_takes_it_away_too(control: LedgerControl) -> None:
    """Where nothing is free elsewhere, no lease goes on on the node: the job waits."""
    first, second = a_life(control, "job-a", (2, 2)), a_life(control, "job-b", (2, 2))
    a, b = first.start(), second.start()
    (there,) = nodes_of(a)
    control.set_aside_node(there, "memory errors")
    assert control.trainer(a.token).commit(a_commit(a, 3, final=True)).order is None
    first.leave(a)
    control.acquire(first.segment_id())
    assert control.segment(first.segment_id()).state is SegmentState.WAITING
    control.trainer(b.token).commit(a_commit(b, 2, final=True))
    second.leave(b)
    assert nodes_of(first.start(3)) == nodes_of(b)


def test_it_stays_set_aside_over_a_new_cluster_and_every_decision_replays(
    control: LedgerControl, ledger_url: str
) -> None:
    life = a_life(control, "job-a", (1, 4))
    control.set_aside_node("node-a", "memory errors")
    control.set_cluster(a_cluster({"node-a": 2, "node-b": 2, "node-c": 1}))
    assert nodes_of(life.start()) == {"node-b", "node-c"}
    assert aside(control) == {"node-a": "memory errors"}
    engine = create_engine(ledger_url)
    with engine.connect() as connection:
        decisions = connection.execute(text("SELECT id, trigger FROM decisions ORDER BY id")).all()
    engine.dispose()
    assert "node node-a was set aside by the operator: memory errors" in [trigger for _, trigger in decisions]
    assert all(control.replay(number).same for number, _ in decisions)


def test_what_cannot_be_set_aside(control: LedgerControl) -> None:
    with pytest.raises(NotFound, match="no node 'node-x'; there are: node-a, node-b"):
        control.set_aside_node("node-x", "why not")
    with pytest.raises(UserError, match="a reason of 1 to 1000 characters, which others are shown; this one has 0"):
        control.set_aside_node("node-a", "  ")
    control.set_aside_node("node-a", "the first reason")
    control.set_aside_node("node-a", "another")
    assert aside(control) == {"node-a": "the first reason"}


# on Ray, where a group's coordinator stays on the node of the rank 0 that it began with


@pytest.fixture
def on_ray(ledger_url: str, tmp_path: Path, clock: FakeClock) -> Iterator[LedgerControl]:
    control = a_control(ledger_url, tmp_path, clock, launcher="ray")
    control.set_cluster(a_cluster({"node-a": 3, "node-b": 2}))
    yield control
    control.close()


def test_processes_leave_their_coordinators_node_by_a_new_start(on_ray: LedgerControl) -> None:
    life = a_life(on_ray, "job-a", (1, 5))
    order = life.start()
    assert order.allocation.slots[0].node == "node-a"
    on_ray.set_aside_node("node-a", "it will go")
    answer = on_ray.trainer(order.token).heartbeat(a_beat(1))
    assert (answer.directive, answer.slots) == (Directive.BOUNDARY, ()), "no worker is started ahead"
    assert on_ray.trainer(order.token).commit(a_commit(order, 2, final=True, ready=())).order is None
    life.leave(order)
    again = life.start(2)
    assert nodes_of(again) == {"node-b"}
    assert again.origin_epoch != order.origin_epoch


def test_processes_leave_other_nodes_in_place_and_go_on_where_their_coordinator_is(on_ray: LedgerControl) -> None:
    life = a_life(on_ray, "job-a", (1, 5))
    order = life.start()
    on_ray.set_aside_node("node-b", "it will go")
    on_ray.trainer(order.token).heartbeat(a_beat(1))
    went_on = on_ray.trainer(order.token).commit(a_commit(order, 2, final=True, ready=())).order
    assert went_on is not None
    assert (nodes_of(went_on), went_on.origin_epoch) == ({"node-a"}, order.origin_epoch)


def test_a_job_that_shrinks_stays_on_its_coordinators_node_though_another_fits_better(on_ray: LedgerControl) -> None:
    life = a_life(on_ray, "job-a", (2, 5))
    order = life.start()
    a_life(on_ray, "job-b", (3, 3))
    on_ray.acquire(on_ray.job("job-b").segment_id)
    answer = on_ray.trainer(order.token).heartbeat(a_beat(1))
    assert {slot.node for slot in answer.slots} == {"node-a"}
    went_on = on_ray.trainer(order.token).commit(a_commit(order, 2, final=True, ready=())).order
    assert went_on is not None
    assert [slot.node for slot in went_on.allocation.slots] == ["node-a", "node-a"]


def test_policies_are_shown_the_node_without_which_processes_do_not_go_on(on_ray: LedgerControl) -> None:
    order = a_life(on_ray, "job-a", (2, 5)).start()
    a_life(on_ray, "job-b", (3, 3))
    on_ray.acquire(on_ray.job("job-b").segment_id)
    assert [view.tied_to for view in on_ray.snapshot().jobs] == ["node-a", None], "one that waits is tied to none"
    on_ray.trainer(order.token).heartbeat(a_beat(1))
    on_ray.trainer(order.token).commit(a_commit(order, 2, final=True, ready=()))
    assert [view.tied_to for view in on_ray.snapshot().jobs] == ["node-a", None], "they are the same processes"


def test_where_groups_have_no_coordinator_they_are_tied_to_no_node(control: LedgerControl) -> None:
    a_life(control, "job-a", (1, 4)).start()
    assert [view.tied_to for view in control.snapshot().jobs] == [None]


# that goes


def asked_to_leave(control: LedgerControl, order: LaunchOrder, step: int) -> tuple[Directive, str]:
    """By the second of two heartbeats: the first may be what wakes the plan."""
    control.trainer(order.token).heartbeat(a_beat(step))
    answer = control.trainer(order.token).heartbeat(a_beat(step))
    return answer.directive, answer.reason


def leave_time(control: LedgerControl) -> float:
    """That processes are given to commit in, before their node goes."""
    return control.settings.grace_seconds + control.settings.longest_between_heartbeats()


def test_until_a_node_is_about_to_go_a_job_stays_for_want_of_room_and_then_leaves_in_time(
    control: LedgerControl, clock: FakeClock
) -> None:
    first, second = a_life(control, "job-a", (2, 2)), a_life(control, "job-b", (2, 2))
    a, b = first.start(), second.start()
    (there,) = nodes_of(a)
    goes = clock() + 1800.0
    assert control.set_aside_node(there, "a spot market's notice", goes).leaves_at == goes
    assert asked_to_leave(control, a, 1) == (Directive.GO_ON, "")
    words = f"stays on {there}, set aside, until 2 slots are free elsewhere, or until it is about to go"
    assert words in control.job("job-a").target_reason
    assert control.trainer(b.token).heartbeat(a_beat(1)).directive is Directive.BOUNDARY, "it is slow to make room"
    clock.now = goes - leave_time(control) - 1.0
    assert asked_to_leave(control, a, 2) == (Directive.GO_ON, "")
    clock.advance(1.0)
    assert asked_to_leave(control, a, 3) == (Directive.BOUNDARY, f"leaves {there} before it goes")
    assert control.trainer(a.token).commit(a_commit(a, 4, final=True, ready=())).order is None
    assert control.job("job-a").step == 4


def test_a_boundary_of_its_own_keeps_a_job_on_a_node_that_is_there_a_while_longer_and_no_room_elsewhere(
    control: LedgerControl, clock: FakeClock
) -> None:
    first, second = a_life(control, "job-a", (2, 2)), a_life(control, "job-b", (2, 2))
    a, b = first.start(), second.start()
    (there,) = nodes_of(a)
    goes = clock() + 1800.0
    control.set_aside_node(there, "a spot market's notice", goes)
    again = control.trainer(a.token).commit(a_commit(a, 3, final=True, ready=())).order
    assert again is not None
    assert (again.allocation, again.origin_epoch) == (a.allocation, a.origin_epoch)
    assert "for want of room elsewhere" in (control.segment(first.segment_id()).grant_reason or "")
    control.trainer(b.token).heartbeat(a_beat(1))
    control.trainer(b.token).commit(a_commit(b, 2, final=True))
    second.leave(b)  # and there is room
    assert asked_to_leave(control, again, 4)[0] is Directive.BOUNDARY
    assert control.trainer(again.token).commit(a_commit(again, 5, final=True, ready=())).order is None
    first.leave(again)
    assert nodes_of(first.start(5)) == nodes_of(b)


def test_no_boundary_keeps_a_job_on_a_node_that_is_about_to_go(control: LedgerControl, clock: FakeClock) -> None:
    first, second = a_life(control, "job-a", (2, 2)), a_life(control, "job-b", (2, 2))
    a, _ = first.start(), second.start()
    (there,) = nodes_of(a)
    control.set_aside_node(there, "a spot market's notice", clock() + leave_time(control))
    assert control.trainer(a.token).commit(a_commit(a, 3, final=True, ready=())).order is None


def test_a_job_leaves_at_once_a_node_that_goes_within_the_time_that_a_boundary_may_take(
    control: LedgerControl, clock: FakeClock
) -> None:
    first, second = a_life(control, "job-a", (2, 2)), a_life(control, "job-b", (2, 2))
    a, _ = first.start(), second.start()
    control.trainer(a.token).heartbeat(a_beat(1))
    (there,) = nodes_of(a)
    control.set_aside_node(there, "a spot market's notice", clock() + 30.0)
    answer = control.trainer(a.token).heartbeat(a_beat(2))
    assert (answer.directive, answer.reason) == (Directive.BOUNDARY, f"leaves {there} before it goes")


def test_on_a_node_that_is_about_to_go_nobody_waits_for_workers_elsewhere_to_load(
    ledger_url: str, tmp_path: Path, clock: FakeClock
) -> None:
    control = a_control(ledger_url, tmp_path, clock)
    control.set_cluster(a_cluster({"node-a": 1, "node-b": 1, "node-c": 1}))
    order = a_life(control, "job-a", (2, 2)).start()
    trainer, left = control.trainer(order.token), sorted(nodes_of(order))[0]
    goes = clock() + 1800.0
    control.set_aside_node(left, "the machine is sold", goes)
    answer = trainer.heartbeat(a_beat(1))
    assert answer.directive is Directive.BOUNDARY
    assert {slot.node for slot in answer.slots} == {"node-a", "node-b", "node-c"} - {left}
    clock.now = goes - leave_time(control)
    answer = trainer.heartbeat(a_beat(1))
    assert (answer.directive, answer.slots) == (Directive.BOUNDARY, ())
    control.close()


def test_when_a_node_goes_is_what_was_said_last_and_nothing_of_one_that_is_taken_back(
    control: LedgerControl, clock: FakeClock
) -> None:
    goes = clock() + 600.0
    control.set_aside_node("node-a", "its fan is loud")
    told = [control.set_aside_node("node-a", "Ray drains it", at) for at in (goes, goes - 60.0, None)]
    assert [status.leaves_at for status in told] == [goes, goes - 60.0, goes - 60.0]
    assert aside(control) == {"node-a": "its fan is loud"}
    taken_back = control.take_back_node("node-a")
    assert (taken_back.set_aside_at, taken_back.leaves_at) == (None, None)
    for wrong in (-1.0, float("nan"), 1e12):
        with pytest.raises(UserError, match=r"leaves_at is .*; allowed are Unix seconds, 0 to 1e\+11, or none"):
            control.set_aside_node("node-a", "why not", wrong)
    assert aside(control) == {}


# by what happened on it


@pytest.fixture
def wide(ledger_url: str, tmp_path: Path, clock: FakeClock) -> Iterator[LedgerControl]:
    """Two nodes of four slots, which eight jobs of one slot fill."""
    control = a_control(ledger_url, tmp_path, clock)
    control.set_cluster(a_cluster({"node-a": 4, "node-b": 4}))
    yield control
    control.close()


def eight(control: LedgerControl, users: Sequence[str | None] = (None,)) -> dict[str, list[tuple[Life, LaunchOrder]]]:
    """By node: jobs of one slot each, running; of these users by turns, on each of the nodes."""
    by_node: dict[str, list[tuple[Life, LaunchOrder]]] = {}
    for number in range(8):
        life = a_life(control, f"job-{number}", (1, 1), users[number % 4 % len(users)])
        order = life.start()
        (node,) = nodes_of(order)
        by_node.setdefault(node, []).append((life, order))
    assert {node: len(lives) for node, lives in by_node.items()} == {"node-a": 4, "node-b": 4}
    return by_node


def test_a_node_on_which_jobs_fail_again_and_again_is_set_aside(wide: LedgerControl) -> None:
    lives = eight(wide)["node-a"]
    for life, order in lives[: REPEATED - 1]:
        life.leave(order, "infrastructure", "killed by signal 9")
        assert aside(wide) == {}
    life, order = lives[REPEATED - 1]
    life.leave(order, "infrastructure", "killed by signal 9")
    names = ", ".join(sorted(life.job_id for life, _ in lives[:REPEATED]))
    assert aside(wide) == {
        "node-a": f"3 of 4 jobs lost attempts on it to the infrastructure within 24 h ({names}); "
        "on other nodes of its type, 0 of 4"
    }
    (status,) = [node for node in wide.nodes() if node.name == "node-a"]
    assert status.set_aside_by == "the platform"
    assert wide.trainer(lives[3][1].token).heartbeat(a_beat(1)).directive is not Directive.FENCED


@pytest.mark.parametrize(
    ("users", "is_set_aside"),
    [
        (["eve", "eve", "eve", "ann"], False),
        (["eve", "ann"], False),
        (["eve", "ann", "ben", "zoe"], True),
        (["op@host"], True),
        (["admin"], True),
        (["eve"], True),
        (["dag:nightly"], True),
        (["eve", "eve", "eve", "op@host"], False),
        (["eve", "eve", "eve", None], False),
    ],
)
def test_what_jobs_of_one_user_did_sets_no_node_aside_whatever_chance_did_besides(
    wide: LedgerControl, users: list[str | None], is_set_aside: bool
) -> None:
    """But those of who may set it aside anyway, and those of the only one whose jobs ran at all."""
    by_node = eight(wide, users)
    assert [wide.job(life.job_id).submitted_by for life, _ in by_node["node-a"]] == (users * 4)[:4]
    for life, order in by_node["node-a"]:
        life.leave(order, "infrastructure", "killed by signal 9")
    wide.reconcile([])
    assert (list(aside(wide)) == ["node-a"]) is is_set_aside


@pytest.mark.parametrize("lately", [True, False])
def test_a_user_is_not_alone_while_jobs_of_others_ran_within_the_window(
    wide: LedgerControl, clock: FakeClock, lately: bool
) -> None:
    other = a_life(wide, "job-ann", (1, 1), "ann")
    other.leave(other.start(), "user_error", "ValueError: no such column")
    clock.advance(1 if lately else WINDOW_SECONDS + 1)
    for life, order in eight(wide, ["eve"])["node-a"]:
        life.leave(order, "infrastructure", "killed by signal 9")
    assert list(aside(wide)) == ([] if lately else ["node-a"])


def test_jobs_of_administrators_by_a_role_of_the_settings_count_by_themselves(
    ledger_url: str, tmp_path: Path, clock: FakeClock
) -> None:
    control = a_control(ledger_url, tmp_path, clock, airflow_users="ann:user, lea:Ops", admin_groups="admin, Ops")
    control.set_cluster(a_cluster({"node-a": 4, "node-b": 4}))
    for life, order in eight(control, ["lea", "lea", "lea", "ann"])["node-a"]:
        life.leave(order, "infrastructure", "killed by signal 9")
    assert list(aside(control)) == ["node-a"]
    control.close()


def blamed_by_counting_every_job(
    types: dict[str, str], failed: dict[str, list[str]], ran: dict[str, list[str]], users: dict[str, str]
) -> dict[str, tuple[int, int, int, int]]:
    def numbers(node: str, user: str | None) -> tuple[int, int, int, int]:
        def count(of: dict[str, list[str]], names: Sequence[str]) -> int:
            return sum(user is None or users.get(job) != user for name in names for job in of[name])

        others = [name for name in types if types[name] == types[node] and name != node]
        return count(failed, [node]), count(ran, [node]), count(failed, others), count(ran, others)

    def is_blamed(node: str) -> bool:
        without = [None, *{users[job] for job in failed[node] if job in users}]
        return all(is_more_than_chance(*numbers(node, user)) for user in without)

    return {node: numbers(node, None) for node in types if is_blamed(node)}


def test_sums_by_type_blame_the_nodes_that_counting_every_job_for_each_of_them_blames() -> None:
    rng, verdicts = Random(7), Counter[bool]()
    for _ in range(500):
        types = {f"n{number}": rng.choice(["cpu", "gpu"]) for number in range(rng.randint(2, 6))}
        users = {f"job-{n}": rng.choice(["eve", "ann", "ben"]) for n in range(40) if rng.random() < 0.8}
        ran = {node: rng.sample([f"job-{n}" for n in range(40)], rng.randint(3, 20)) for node in types}
        rate = {node: rng.choice([0.0, 0.05, 0.8]) for node in types}
        failed = {node: [job for job in ran[node] if rng.random() < rate[node]] for node in types}
        tried = {
            node: Tried(Counter(users.get(job) for job in failed[node]), Counter(users.get(job) for job in ran[node]))
            for node in types
        }
        expected = blamed_by_counting_every_job(types, failed, ran, users)
        assert blamed(tried, types) == expected
        verdicts.update(node in expected for node in types)
    assert min(verdicts[True], verdicts[False]) > 50


def test_thousands_of_nodes_are_judged_in_a_moment() -> None:
    """A day's jobs of each are counted once, not once for every other node: submissions and commits wait meanwhile."""
    users = [f"user-{n}" for n in range(20)]
    types = {f"n{number}": "gpu" for number in range(3000)}
    tried = {node: Tried(Counter(users[:4]), Counter(dict.fromkeys(users, 4))) for node in types}
    began = process_time()
    assert blamed(tried, types) == {}
    assert process_time() - began < 3.0


@pytest.mark.parametrize("kind", ["user_error", "stopped", "boundary"])
def test_what_is_not_the_infrastructures_fault_counts_for_nothing(wide: LedgerControl, kind: str) -> None:
    for life, order in eight(wide)["node-a"]:
        life.leave(order, kind, "ValueError: no such column")
    wide.reconcile([])
    assert aside(wide) == {}


def test_one_job_that_fails_again_and_again_is_one(wide: LedgerControl) -> None:
    life = a_life(wide, "job-a", (1, 1))
    for _ in range(4):
        life.leave(life.start(), "infrastructure", "killed by signal 9")
    assert aside(wide) == {}


def test_an_outage_of_everything_is_no_nodes_fault(wide: LedgerControl) -> None:
    by_node = eight(wide)
    for pair in zip(*by_node.values(), strict=True):
        for life, order in pair:
            life.leave(order, "infrastructure", "the switch was restarted")
    assert aside(wide) == {}


def test_jobs_that_are_killed_now_here_and_now_there_are_no_nodes_fault(wide: LedgerControl) -> None:
    """All of a node's jobs lose an attempt, and two of another's four: that is chance."""
    by_node = eight(wide)
    for life, order in [*by_node["node-b"][:2], *by_node["node-a"]]:
        life.leave(order, "infrastructure", "killed by signal 9")
    assert aside(wide) == {}


@given(
    jobs=st.integers(1, 200), there=st.integers(0, 500), failed_there=st.integers(0, 500), failed=st.integers(0, 200)
)
def test_the_chance_of_as_many_failures_is_a_beta_binomials_tail(
    jobs: int, there: int, failed_there: int, failed: int
) -> None:
    failed, a, b = min(failed, jobs), failed_there + PRIOR_FAILED, there + PRIOR_WELL
    expected = float(betabinom.sf(failed - 1, jobs, a, b))
    assert chance_of(failed, jobs, a, b) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_of_thousands_of_jobs_it_is_a_number_too() -> None:
    assert chance_of(3, 5000, 3 + PRIOR_FAILED, 50_000 + PRIOR_WELL) < 1
    assert chance_of(2500, 5000, 3 + PRIOR_FAILED, 50_000 + PRIOR_WELL) < CHANCE


def ever_blamed(rng: Random, rate: float, there: int, jobs: int = 150) -> bool:
    """Whether a node is, on which so many jobs fail as on the others, asked again with each that does."""
    failed_there, failed = sum(rng.random() < rate for _ in range(there)), 0
    for ran in range(1, jobs + 1):
        if rng.random() < rate:
            failed += 1
            if is_more_than_chance(failed, ran, failed_there, there):
                return True
    return False


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("there", [50, 450])
def test_a_node_like_the_others_is_hardly_ever_blamed_however_often_that_is_asked(rate: float, there: int) -> None:
    rng = Random(f"{rate} {there}")
    assert sum(ever_blamed(rng, rate, there) for _ in range(300)) <= 300 * CHANCE * 1.65 + 3


def test_one_on_which_twice_as_many_fail_is_blamed_in_the_end() -> None:
    assert not is_more_than_chance(4, 10, 90, 450)
    assert is_more_than_chance(60, 150, 90, 450)


def test_cancelled_jobs_count_for_nothing(wide: LedgerControl) -> None:
    for life, order in eight(wide)["node-a"]:
        wide.cancel(life.job_id, "not needed any more")
        life.leave(order, "infrastructure", "ended by the agent")
    assert aside(wide) == {}


def test_failures_of_long_ago_and_from_before_it_was_taken_back_count_for_nothing(
    wide: LedgerControl, clock: FakeClock
) -> None:
    lives = eight(wide)["node-a"]
    for life, order in lives[: REPEATED - 1]:
        life.leave(order, "infrastructure", "killed by signal 9")
    clock.advance(WINDOW_SECONDS + 1)
    lives[2][0].leave(lives[2][1], "infrastructure", "killed by signal 9")
    assert aside(wide) == {}
    wide.set_aside_node("node-a", "looked at")
    clock.advance(1)
    wide.take_back_node("node-a")
    wide.reconcile([])
    lives[3][0].leave(lives[3][1], "infrastructure", "killed by signal 9")
    assert aside(wide) == {}


def test_the_only_node_of_a_type_is_never_set_aside_by_itself(
    ledger_url: str, tmp_path: Path, clock: FakeClock
) -> None:
    control = a_control(ledger_url, tmp_path, clock)
    control.set_cluster(a_cluster({"node-a": 8}))
    for number in range(6):
        life = a_life(control, f"job-{number}", (1, 1))
        life.leave(life.start(), "infrastructure", "killed by signal 9")
    control.reconcile([])
    assert aside(control) == {}
    control.set_aside_node("node-a", "by a user it is")
    assert control.snapshot().capacity() == {}
    control.close()


def on_node(control: LedgerControl, clock: FakeClock, node: str, lives: list[Life], seconds: float, step: int) -> None:
    """All jobs run on this node for a while, with steps of so many seconds."""
    other = "node-b" if node == "node-a" else "node-a"
    control.take_back_node(node)
    clock.advance(1)
    control.set_aside_node(other, "elsewhere for now")
    for life in lives:
        order = life.start(step)
        if nodes_of(order) != {node}:
            control.trainer(order.token).commit(a_commit(order, step + 1, final=True))
            life.leave(order)
            order = life.start(step + 1)
        assert nodes_of(order) == {node}
        reports = [an_observation(step + n, order, step_seconds=seconds) for n in range(2, 12)]
        control.trainer(order.token).observe(reports)


@pytest.mark.parametrize(("slower", "is_set_aside"), [(2.0, True), (1.2, False)])
def test_a_node_on_which_jobs_are_slower_than_elsewhere_is_set_aside(
    wide: LedgerControl, clock: FakeClock, slower: float, is_set_aside: bool
) -> None:
    lives = [a_life(wide, f"job-{number}", (1, 1)) for number in range(REPEATED)]
    on_node(wide, clock, "node-b", lives, seconds=0.1, step=0)
    on_node(wide, clock, "node-a", lives, seconds=0.1 * slower, step=20)
    wide.take_back_node("node-b")
    clock.advance(EVERY_SECONDS)
    actions = wide.reconcile([]).actions
    why = "3 jobs were slower on it than elsewhere within 24 h (job-0 2.0 times, job-1 2.0 times, job-2 2.0 times)"
    assert aside(wide) == ({"node-a": why} if is_set_aside else {})
    assert (f"node node-a was set aside: {why}" in actions) is is_set_aside


@pytest.mark.parametrize("alone", [True, False])
def test_times_that_one_users_jobs_report_set_no_node_aside_unless_nobody_elses_ran(
    wide: LedgerControl, clock: FakeClock, alone: bool
) -> None:
    if not alone:
        a_life(wide, "job-ann", (1, 1), "ann").start()
    lives = [a_life(wide, f"job-{number}", (1, 1), "eve") for number in range(REPEATED)]
    on_node(wide, clock, "node-b", lives, seconds=0.1, step=0)
    on_node(wide, clock, "node-a", lives, seconds=0.4, step=20)
    wide.take_back_node("node-b")
    clock.advance(EVERY_SECONDS)
    wide.reconcile([])
    assert list(aside(wide)) == (["node-a"] if alone else [])
