"""Moving jobs to other nodes: who is asked, who waits, and that two jobs can change places."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Allocation, Layout, Limits, Slot, Target
from elastic_core.policy.plans.grants import plan_moves
from elastic_core.policy.plans.migration import able_to_migrate, by_node, on_required_nodes
from elastic_core.policy.plans.moves import Asker, Holder, Moves
from elastic_core.policy.plans.packing import SlotPool

NOW, GRACE = 1000.0, 60.0
A, B, C = (tuple(Slot(node, index, "t4") for index in range(2)) for node in ("a", "b", "c"))


def a_target(nodes: dict[str, int], *, migrate: bool = True) -> Target:
    count = sum(nodes.values())
    return Target(
        counts={"t4": count}, global_batch=64, layout=Layout(data=count), reason="packs", nodes=nodes, migrate=migrate
    )


def a_holder(job: str, *slots: Slot, ending_since: float | None = None) -> Holder:
    allocation = Allocation(slots=slots, global_batch=64, layout=Layout(data=len(slots)))
    return Holder(job_id=job, segment_id=f"{job}__seg_0", allocation=allocation, ending_since=ending_since)


def an_asker(job: str) -> Asker:
    limits = Limits(slot_counts=(1, 2), types=(), min_batch=16, max_batch=256)
    return Asker(job_id=job, segment_id=f"{job}__seg_0", limits=limits)


def test_nodes_that_are_a_wish_move_nobody() -> None:
    moves = plan_moves(NOW, GRACE, B, [a_holder("x", A[0])], [], {"x": a_target({"b": 1}, migrate=False)})
    assert moves == Moves()


def test_a_job_whose_plan_demands_other_nodes_is_asked_once_they_are_free() -> None:
    moves = plan_moves(NOW, GRACE, B, [a_holder("x", A[0])], [], {"x": a_target({"b": 1})})
    assert moves.revocations == {"x__seg_0": "to other nodes, 1 on b: packs"}


def test_who_is_there_already_goes_on() -> None:
    assert plan_moves(NOW, GRACE, B, [a_holder("x", A[0])], [], {"x": a_target({"a": 1})}) == Moves()


def test_nobody_stops_for_slots_that_will_not_come() -> None:
    holders = [a_holder("x", A[0]), a_holder("y", *B)]
    moves = plan_moves(NOW, GRACE, A[1:], holders, [], {"x": a_target({"b": 1}), "y": a_target({"b": 2})})
    assert not moves.revocations
    assert moves.waits == {"x": "keeps its nodes until there are slots to move to: 1 on b"}


def test_two_jobs_change_places() -> None:
    holders = [a_holder("x", *A), a_holder("y", *B)]
    moves = plan_moves(NOW, GRACE, (), holders, [], {"x": a_target({"b": 2}), "y": a_target({"a": 2})})
    assert set(moves.revocations) == {"x__seg_0", "y__seg_0"}


def test_who_has_stopped_waits_for_the_nodes_it_was_promised() -> None:
    ending = replace(a_holder("y", *B, ending_since=NOW - 1), revoked_by="plan")
    targets = {"x": a_target({"b": 2}), "y": a_target({"a": 2})}
    moves = plan_moves(NOW, GRACE, A, [ending], [an_asker("x")], targets)
    assert not moves.grants
    assert moves.waits["x"] == "waits for slots that are being given up by y"
    assert moves.check_at == NOW - 1 + GRACE


def test_who_has_waited_long_enough_starts_where_there_is_room() -> None:
    ending = a_holder("y", *B, ending_since=NOW - GRACE)
    targets = {"x": a_target({"b": 2}), "y": a_target({"a": 2})}
    (grant,) = plan_moves(NOW, GRACE, A, [ending], [an_asker("x")], targets).grants
    assert grant.allocation.slots == A
    assert grant.reason == "packs"


def test_slots_to_come_on_other_nodes_are_not_waited_for() -> None:
    ending = a_holder("y", B[1], ending_since=NOW - 1)
    targets = {"x": a_target({"b": 2}), "z": a_target({"b": 1})}
    holders = [ending, a_holder("z", B[0])]
    (grant,) = plan_moves(NOW, GRACE, A, holders, [an_asker("x")], targets).grants
    assert grant.allocation.slots == A


@given(st.permutations([*A, *B]), st.permutations([*A, *B]))
def test_any_arrangement_leads_to_any_other_where_processes_end_at_once(before: list[Slot], after: list[Slot]) -> None:
    jobs = ["x", "y"]
    targets = {job: a_target(dict(by_node(after[2 * at : 2 * at + 2]))) for at, job in enumerate(jobs)}
    holds = {job: tuple(sorted(before[2 * at : 2 * at + 2])) for at, job in enumerate(jobs)}
    free: set[Slot] = set()
    for _ in range(4):
        holders = [a_holder(job, *slots) for job, slots in holds.items()]
        moves = plan_moves(NOW, inf, free, holders, [an_asker(job) for job in jobs if job not in holds], targets)
        for holder in holders:
            if holder.segment_id in moves.revocations:
                free.update(holds.pop(holder.job_id))
        for grant in moves.grants if not moves.revocations else ():
            holds[grant.asker.job_id] = grant.allocation.slots
            free.difference_update(grant.allocation.slots)
    assert all(on_required_nodes(targets[job], holds[job]) for job in jobs)


@given(st.permutations([*A, *B, *C]), st.permutations([*A, *B, *C]), st.integers(0, 6))
def test_as_many_jobs_move_as_can_by_what_is_free_and_by_each_others_slots(
    before: list[Slot], after: list[Slot], jobs: int
) -> None:
    holders = [a_holder(f"j{at}", slot) for at, slot in enumerate(before[:jobs])]
    targets = {f"j{at}": a_target({slot.node: 1}) for at, slot in enumerate(after[:jobs])}
    free = before[jobs:]

    def can(together: tuple[Holder, ...]) -> bool:
        given_up = Counter(holder.allocation.slots[0].node for holder in together)
        wanted = Counter(node for holder in together for node in targets[holder.job_id].nodes or ())
        return all(wanted[node] == 0 or given_up[node] + by_node(free)[node] > 0 for node in wanted)

    moving = [holder for holder in holders if not on_required_nodes(targets[holder.job_id], holder.allocation.slots)]
    some = [each for size in range(len(moving) + 1) for each in combinations(moving, size) if can(each)]
    able = able_to_migrate(holders, targets, SlotPool(free))
    assert able == {holder.segment_id for holder in max(some, key=len)}


def test_a_job_that_migrates_and_grows_is_resized() -> None:
    target = replace(a_target({"b": 2}), reason="two nodes cost more")
    moves = plan_moves(NOW, GRACE, B, [a_holder("x", A[0])], [], {"x": target})
    assert moves.revocations == {"x__seg_0": "resize 1 -> 2 slots: two nodes cost more"}
