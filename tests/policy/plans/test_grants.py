"""Which targets come into force now: the rules one by one, and their laws over random pools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Allocation, Layout, Limits, Slot, Target
from elastic_core.policy.plans import grants
from elastic_core.policy.plans.grants import grants_to_returning, in_place, is_settled, plan_moves
from elastic_core.policy.plans.moves import Asker, Holder, Moves

NOW, GRACE = 1000.0, 60.0
POOL = tuple(Slot(node, index, "cpu") for node in ("a", "b") for index in range(2))


def a_target(count: int, batch: int = 64, kind: str = "cpu") -> Target:
    return Target(counts={kind: count}, global_batch=batch, layout=Layout(data=count), reason=f"{count} are fair")


def an_asker(job: str, counts: tuple[int, ...] = (1, 2, 3, 4), last: tuple[Slot, ...] = ()) -> Asker:
    limits = Limits(slot_counts=counts, types=(), min_batch=16, max_batch=256)
    return Asker(job_id=job, segment_id=f"{job}__seg_0", limits=limits, last_slots=last)


def a_holder(
    job: str, slots: tuple[Slot, ...], since: float | None = None, by: str | None = None, *, runs: bool = True
) -> Holder:
    return Holder(
        job_id=job,
        segment_id=f"{job}__seg_0",
        allocation=Allocation(slots=slots, global_batch=64, layout=Layout(data=len(slots))),
        ending_since=since,
        revoked_by=by,
        open=runs,
    )


def moves_of(
    free: tuple[Slot, ...], holders: list[Holder], askers: list[Asker], targets: Mapping[str, Target]
) -> Moves:
    return plan_moves(NOW, GRACE, free, holders, askers, targets)


def granted(moves: Moves) -> dict[str, int]:
    return {grant.asker.job_id: grant.allocation.num_slots for grant in moves.grants}


def test_a_whole_target_that_is_free_is_given_on_one_node() -> None:
    moves = moves_of(POOL, [], [an_asker("x")], {"x": a_target(2)})
    assert granted(moves) == {"x": 2}
    assert moves.grants[0].allocation.num_nodes == 1


def test_its_last_slots_come_first() -> None:
    moves = moves_of(POOL, [], [an_asker("x", last=POOL[2:])], {"x": a_target(2)})
    assert moves.grants[0].allocation.slots == POOL[2:]


def test_slots_that_are_being_given_up_are_waited_for() -> None:
    running = a_holder("y", POOL[:3])
    moves = moves_of(POOL[3:], [running], [an_asker("x")], {"x": a_target(2), "y": a_target(2)})
    assert granted(moves) == {}
    assert moves.waits["x"] == "waits for slots that are being given up by y"
    assert moves.revocations == {"y__seg_0": "resize 3 -> 2 slots: 2 are fair"}
    assert moves.check_at == NOW + GRACE


def test_but_not_longer_than_the_grace() -> None:
    stuck = a_holder("y", POOL[:3], since=NOW - GRACE, by="plan")
    moves = moves_of(POOL[3:], [stuck], [an_asker("x")], {"x": a_target(2), "y": a_target(2)})
    assert granted(moves) == {"x": 1}
    assert moves.grants[0].reason == "1 of 2 slots, the others are not free; 2 are fair"


def test_a_job_waits_for_its_own_last_processes() -> None:
    ending = a_holder("x", POOL[:3], since=NOW, runs=False)
    moves = moves_of(POOL[3:], [ending], [an_asker("x")], {"x": a_target(4)})
    assert moves.waits["x"] == "waits for slots that are being given up by its own last processes"


def test_what_is_not_coming_is_not_waited_for() -> None:
    running = a_holder("y", POOL[:2])
    moves = moves_of(POOL[2:], [running], [an_asker("x", counts=(1, 3))], {"x": a_target(3), "y": a_target(2)})
    assert granted(moves) == {"x": 1}


def test_who_has_no_target_and_goes_on_gives_nothing_up() -> None:
    """Nobody has decided on it, and nobody asks it for a boundary."""
    running, ending = a_holder("y", POOL[:3]), a_holder("y", POOL[:3], since=NOW)
    moves = moves_of(POOL[3:], [running], [an_asker("x")], {"x": a_target(2)})
    assert (granted(moves), moves.waits, moves.revocations) == ({"x": 1}, {}, {})
    assert "being given up by y" in moves_of(POOL[3:], [ending], [an_asker("x")], {"x": a_target(2)}).waits["x"]


def test_never_below_the_minimum() -> None:
    running = a_holder("y", POOL[:3])
    moves = moves_of(POOL[3:], [running], [an_asker("x", counts=(2, 4))], {"x": a_target(4), "y": a_target(3)})
    assert granted(moves) == {}
    assert moves.waits["x"] == "waits: 1 slot is free of the 4 that it shall get, at least 2 are needed"


def test_a_part_keeps_the_inner_parallel_sizes() -> None:
    target = Target(counts={"cpu": 4}, global_batch=64, layout=Layout(data=2, tensor=2), reason="r")
    asker = an_asker("x")
    asker = replace(asker, limits=replace(asker.limits, cuts=(Layout(), Layout(tensor=2))))
    moves = moves_of(POOL[:3], [a_holder("y", POOL[3:])], [asker], {"x": target, "y": a_target(1)})
    assert moves.grants[0].allocation.layout == Layout(data=1, tensor=2)


def test_another_layout_on_the_same_slots_is_a_resize() -> None:
    target = replace(a_target(4), layout=Layout(data=2, tensor=2))
    moves = moves_of((), [a_holder("x", POOL)], [], {"x": target})
    assert moves.revocations == {
        "x__seg_0": "another layout, data 4 x tensor 1 x pipeline 1 -> data 2 x tensor 2 x pipeline 1: 4 are fair"
    }


def test_whole_targets_go_before_parts() -> None:
    targets = {"x": a_target(4), "y": a_target(2), "z": a_target(2)}
    stuck = a_holder("z", POOL[2:])
    moves = moves_of(POOL[:2], [stuck], [an_asker("x"), an_asker("y")], targets)
    assert granted(moves) == {"y": 2}


def test_growth_needs_its_slots_now() -> None:
    grows = a_holder("x", POOL[:1])
    assert moves_of(POOL[1:2], [grows], [], {"x": a_target(2)}).revocations == {
        "x__seg_0": "resize 1 -> 2 slots: 2 are fair"
    }
    moves = moves_of(POOL[1:2], [grows], [], {"x": a_target(3)})
    assert moves.revocations == {}
    assert moves.waits == {"x": "keeps 1 slot until 2 more are free"}


def test_two_jobs_do_not_grow_into_the_same_slot() -> None:
    holders = [a_holder("x", POOL[:1]), a_holder("y", POOL[1:2])]
    moves = moves_of(POOL[2:3], holders, [], {"x": a_target(2), "y": a_target(2)})
    assert list(moves.revocations) == ["x__seg_0"]


GPUS = tuple(Slot("g", index, "gpu") for index in range(2))


def test_two_jobs_that_exchange_their_slots_are_both_asked() -> None:
    holders = [a_holder("x", POOL[:2]), a_holder("y", GPUS)]
    moves = moves_of((), holders, [], {"x": a_target(2, kind="gpu"), "y": a_target(2)})
    assert moves.revocations == {
        "x__seg_0": "resize 2 -> 2 slots: 2 are fair",
        "y__seg_0": "resize 2 -> 2 slots: 2 are fair",
    }
    assert moves.waits == {}


def test_who_cannot_exchange_goes_on_and_is_not_waited_for() -> None:
    """Slots on another type are held by processes that were asked long ago: x keeps its own, and z waits for none."""
    stuck = a_holder("y", GPUS, since=NOW - GRACE, by="user")
    targets = {"x": a_target(2, kind="gpu"), "y": a_target(2, kind="gpu"), "z": a_target(2)}
    moves = moves_of(POOL[2:3], [a_holder("x", POOL[:2]), stuck], [an_asker("z")], targets)
    assert moves.revocations == {}
    assert moves.waits == {"x": "keeps 2 slots until 2 more are free"}
    assert granted(moves) == {"z": 1}


def test_a_job_that_may_stay_after_all_is_no_longer_asked() -> None:
    asked = a_holder("x", POOL[:2], since=NOW, by="plan")
    assert moves_of(POOL[2:], [asked], [], {"x": a_target(2)}).withdrawals == ["x__seg_0"]
    by_user = a_holder("x", POOL[:2], since=NOW, by="user")
    assert moves_of(POOL[2:], [by_user], [], {"x": a_target(2)}).withdrawals == []


def test_no_slots_for_a_target_of_none() -> None:
    moves = moves_of(POOL, [], [an_asker("x")], {"x": Target.nothing("behind y in the queue")})
    assert (granted(moves), moves.waits) == ({}, {})


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[Slot], list[Holder], list[Asker], dict[str, Target]]:
    """A pool of two types; some jobs hold slots, some ask; targets together within capacity."""
    slots = [Slot(f"n{i // 3}", i % 3, "cpu" if i < 6 else "gpu") for i in range(draw(st.integers(1, 12)))]
    room = Counter(slot.type for slot in slots)
    free, holders, askers = list(slots), [], []
    targets: dict[str, Target] = {}
    for number in range(draw(st.integers(1, 5))):
        job, kind = f"j{number}", draw(st.sampled_from(sorted(room)))
        count = draw(st.integers(0, room[kind]))
        room[kind] -= count
        targets[job] = a_target(count, kind=kind) if count else Target.nothing("none")
        own = draw(st.integers(0, min(4, len(free))))
        runs = draw(st.booleans())
        if own:
            since = draw(st.none() | st.floats(NOW - 2 * GRACE, NOW)) if runs else NOW - draw(st.floats(0, 90))
            by = draw(st.sampled_from(["plan", "user"])) if since is not None and runs else None
            holders.append(a_holder(job, tuple(free[:own]), since, by, runs=runs))
            free = free[own:]
        if not own or not runs:
            allowed = tuple(sorted(draw(st.sets(st.integers(1, 12), max_size=3)) | ({count} if count else {1})))
            askers.append(an_asker(job, counts=allowed))
    return free, holders, askers, targets


def test_slots_that_are_being_left_in_place_are_waited_for() -> None:
    shrunk = replace(a_holder("y", POOL[:2]), draining=POOL[2:3], draining_since=NOW - 1)
    moves = moves_of(POOL[3:], [shrunk], [an_asker("x")], {"x": a_target(2), "y": a_target(2)})
    assert moves.waits["x"] == "waits for slots that are being given up by y"
    assert moves.check_at == NOW - 1 + GRACE
    late = replace(shrunk, draining_since=NOW - GRACE)
    assert granted(moves_of(POOL[3:], [late], [an_asker("x")], {"x": a_target(2), "y": a_target(2)})) == {"x": 1}


def held(*slots: Slot) -> Allocation:
    return Allocation(slots=slots, global_batch=64, layout=Layout(data=len(slots)))


def test_a_resize_in_place_keeps_slots_of_the_same_type_and_be_it_one() -> None:
    assert in_place(a_target(1), held(*POOL[:2]), []) == POOL[:1]
    assert in_place(a_target(4), held(POOL[3]), POOL[:3]) == POOL
    assert in_place(a_target(2), held(POOL[1], *POOL[2:]), []) == POOL[2:]  # the node that is kept is not rank 0's
    assert in_place(a_target(3), held(*POOL[:2]), []) is None
    assert in_place(a_target(2, kind="t4"), held(*POOL[:2]), [Slot("c", 0, "t4"), Slot("c", 1, "t4")]) is None
    assert in_place(replace(a_target(2), nodes={"b": 2}), held(POOL[0]), POOL[1:]) is None


@given(st.permutations(POOL), st.integers(1, 4), st.integers(1, 4), st.integers(0, 4))
def test_a_resize_in_place_takes_what_is_held_or_free_and_nothing_twice(
    order: list[Slot], have: int, want: int, others: int
) -> None:
    mine, free = held(*order[:have]), order[have : max(have, 4 - others)]
    slots = in_place(a_target(want), mine, free)
    if slots is not None:
        assert len(set(slots)) == want
        assert set(slots) <= {*mine.slots, *free}
        assert set(slots) & set(mine.slots)


@given(pools())
def test_moves_lead_to_every_target_where_processes_end_at_once(
    pool: tuple[list[Slot], list[Holder], list[Asker], dict[str, Target]],
) -> None:
    slots, holders, askers, targets = pool
    free, limits = set(slots), {asker.job_id: asker for asker in askers}
    holds = {holder.job_id: holder.allocation for holder in holders}
    for _ in range(20):
        runs = [a_holder(job, allocation.slots) for job, allocation in holds.items()]
        runs = [replace(holder, allocation=holds[holder.job_id]) for holder in runs]
        asks = [limits.get(job, an_asker(job)) for job in targets if job not in holds]
        moves = plan_moves(NOW, inf, free, runs, asks, targets)
        for grant in moves.grants:
            free.difference_update(grant.allocation.slots)
            holds[grant.asker.job_id] = grant.allocation
        for holder in runs:
            if holder.segment_id in moves.revocations:
                free.update(holds.pop(holder.job_id).slots)
        if not moves.grants and not moves.revocations:
            break
    for job, target in targets.items():
        assert holds[job].counts() == target.wanted if job in holds else not target.num_slots


@given(pools())
def test_laws_of_moves(pool: tuple[list[Slot], list[Holder], list[Asker], dict[str, Target]]) -> None:
    free, holders, askers, targets = pool
    moves = moves_of(tuple(free), holders, askers, targets)
    given_out = [slot for grant in moves.grants for slot in grant.allocation.slots]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= set(free)
    for grant in moves.grants:
        target, asker = targets[grant.asker.job_id], grant.asker
        assert grant.allocation.num_slots in asker.limits.slot_counts
        assert all(count <= target.counts.get(kind, 0) for kind, count in grant.allocation.counts().items())
        assert grant.allocation.layout.world_size == grant.allocation.num_slots
    served = granted(moves)
    for asker in askers:  # everybody is served, or it is said why not
        assert asker.job_id in served or asker.job_id in moves.waits or not targets[asker.job_id].num_slots
    for holder in holders:
        assert not (holder.segment_id in moves.revocations and not holder.open)
    assert moves.check_at is None or moves.check_at > NOW


@given(pools(), st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=3))
def test_without_those_that_are_settled_the_moves_are_the_same(
    pool: tuple[list[Slot], list[Holder], list[Asker], dict[str, Target]], others: list[tuple[int, bool]]
) -> None:
    """Which is why a step of a plan looks at the others only."""
    free, holders, askers, targets = pool
    for number, (count, migrates) in enumerate(others):
        slots = tuple(Slot(f"s{number}", index, "cpu") for index in range(count))
        holders.insert(number, a_holder(f"settled{number}", slots))
        targets[f"settled{number}"] = replace(a_target(count), nodes={f"s{number}": count}, migrate=migrates)
    left = [holder for holder in holders if not is_settled(holder, targets.get(holder.job_id))]
    assert len(holders) - len(left) >= len(others)
    still = {one.job_id: targets[one.job_id] for one in (*left, *askers) if one.job_id in targets}
    assert moves_of(tuple(free), left, askers, still) == moves_of(tuple(free), holders, askers, targets)


def test_who_is_asked_to_stop_leaves_slots_or_leaves_a_node_is_not_settled() -> None:
    stays, target = a_holder("y", POOL[:2]), a_target(2)
    assert is_settled(stays, target)
    assert not is_settled(stays, None)
    assert not is_settled(stays, a_target(1))
    assert not is_settled(replace(stays, ending_since=NOW, revoked_by="user"), target)
    assert not is_settled(replace(stays, open=False), target)
    assert not is_settled(replace(stays, draining=POOL[2:], draining_since=NOW), target)
    assert not is_settled(replace(stays, leaves=("a",)), target)


@given(pools())
def test_laws_of_what_is_given_back(pool: tuple[list[Slot], list[Holder], list[Asker], dict[str, Target]]) -> None:
    """Whoever lost an attempt is never made to wait for others where one of its counts is free."""
    free, _, askers, targets = pool
    moves = grants_to_returning(free, askers, targets)
    given_out = [slot for grant in moves.grants for slot in grant.allocation.slots]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= set(free)
    assert not moves.revocations
    assert not moves.waits
    served, left = granted(moves), Counter(slot.type for slot in set(free) - set(given_out))
    for asker in askers:
        target = targets[asker.job_id]
        got = served.get(asker.job_id, 0)
        assert got <= target.num_slots
        if not got and target.num_slots:
            assert sum((left & Counter(target.counts)).values()) < asker.limits.min_slots


def test_who_lost_an_attempt_gets_a_part_at_once_and_its_own_slots_first() -> None:
    targets = {"x": a_target(4)}
    (grant,) = grants_to_returning(POOL[1:], [an_asker("x", (1, 2, 4), last=POOL[2:])], targets).grants
    assert grant.allocation.slots == POOL[2:]
    assert granted(moves_of(POOL[1:], [a_holder("y", POOL[:1], NOW, "plan")], [an_asker("x")], targets)) == {}


def leaving(job: str, usable: tuple[Slot, ...], left: int, **more: object) -> Holder:
    """A holder with `left` slots on a node that is set aside, beside those that it may keep."""
    layout = Layout(data=len(usable) + left)
    holder = a_holder(job, usable)
    return replace(holder, allocation=replace(holder.allocation, layout=layout), leaves=("z",), **more)  # type: ignore[arg-type]


def test_a_job_leaves_a_node_that_is_set_aside_once_there_is_room() -> None:
    free = plan_moves(NOW, GRACE, POOL[:2], [leaving("a", (), 2)], [], {"a": a_target(2)})
    assert free.revocations == {"a__seg_0": "leaves z, set aside; 2 slots elsewhere: 2 are fair"}
    full = plan_moves(NOW, GRACE, POOL[:1], [leaving("a", (), 2)], [], {"a": a_target(2)})
    assert full.revocations == {}
    assert full.waits == {"a": "stays on z, set aside, until 2 slots are free elsewhere"}


def test_a_job_that_is_to_shrink_leaves_it_at_once() -> None:
    for target in (a_target(2), a_target(1), Target.nothing("waits")):
        moves = plan_moves(NOW, GRACE, [], [leaving("a", POOL[:2], 2)], [], {"a": target})
        assert set(moves.revocations) == {"a__seg_0"}


def test_a_job_leaves_a_node_that_is_about_to_go_whether_or_not_there_is_room() -> None:
    stays = leaving("a", (), 2, leave_by=NOW + 5)
    moves = plan_moves(NOW, GRACE, POOL[:1], [stays], [], {"a": a_target(2)})
    assert (moves.revocations, moves.check_at) == ({}, NOW + 5), "and is looked at again when the time has come"
    assert moves.waits == {"a": "stays on z, set aside, until 2 slots are free elsewhere, or until it is about to go"}
    for targets in ({"a": a_target(2)}, {}):  # none: of a job that cannot be decided on
        moves = plan_moves(NOW + 5, GRACE, POOL[:1], [stays], [], targets)
        assert (moves.revocations, moves.waits) == ({"a__seg_0": "leaves z before it goes"}, {})
    asked = replace(stays, revoked_by="plan", ending_since=NOW)
    assert plan_moves(NOW + 5, GRACE, [], [asked], [], {"a": a_target(2)}).revocations == {}


def test_what_a_job_leaves_is_promised_to_nobody() -> None:
    holder = leaving("a", (), 2, ending_since=NOW, revoked_by="plan")
    moves = plan_moves(NOW, GRACE, [], [holder], [an_asker("b", (2,))], {"a": a_target(0), "b": a_target(2)})
    assert moves.grants == []
    assert moves.waits["b"].startswith("waits: 0 slots are free of the 2")


def test_of_workers_and_servers_on_two_types_the_workers_come_first():
    """Rank by rank: servers are the last, and stay so wherever the nodes' names sort."""
    slots = (Slot("a-cpus", 0, "cpu"), Slot("b-gpus", 0, "gpu"), Slot("b-gpus", 1, "gpu"))
    target = Target(counts={"gpu": 2, "cpu": 1}, global_batch=16, layout=Layout(data=2, servers=1))
    allocation = grants.granted(target, slots)
    assert [slot.type for slot in allocation.slots] == ["gpu", "gpu", "cpu"]
    assert in_place(target, allocation, set()) is None, "which rank is where is not only the node's matter"


def test_fewer_slots_than_planned_keep_as_many_servers_as_they_can():
    admitted = Limits(
        slot_counts=(2, 3, 4), types=(), min_batch=16, max_batch=64, cuts=(Layout(servers=1), Layout(servers=2))
    )
    target = Target(counts={"cpu": 4}, global_batch=16, layout=Layout(data=2, servers=2))
    for free, layout in ((3, Layout(data=1, servers=2)), (2, Layout(data=1, servers=1))):
        asker = Asker(job_id="a", segment_id="a__seg_0", limits=admitted)
        moves = plan_moves(0.0, 0.0, [Slot("n", index, "cpu") for index in range(free)], (), [asker], {"a": target})
        assert [grant.allocation.layout for grant in moves.grants] == [layout]
