"""Who has waited for too long takes a turn."""

from __future__ import annotations

from dataclasses import replace

from elastic_core.domain import JobView, Plan, Slot, Snapshot
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.rules.starvation import MOST, PATIENCE, TURN
from tests.policy.builders import NOW, apply, decide, holding, job, limits, measured, nodes, point, snapshot

ONE = limits((1,), batch=(64, 64))
LATE = PATIENCE + 60.0


def view(name: str, arrived: float, work: int, priority: int = 0, count: int = 1) -> JobView:
    lim = limits((count,), batch=(64, 64))
    point_ = point(count, 64, 1.0)
    return measured(job(name, arrived, lim, total_samples=work, task=name, priority=priority), point_)


def runs(plan: Plan) -> set[str]:
    return {name for name, target in plan.targets.items() if target.num_slots}


def crowded(now: float, *others: JobView) -> Snapshot:
    """One slot, on which something short and important runs; something long waits since second 0."""
    short = holding(view("short", 1.0, 6_400, priority=5), Slot("cpu-0", 0, "cpu"), batch=64)
    return snapshot(nodes(1), view("long", 0.0, 10**9), short, *others, now=now)


def test_short_and_important_work_goes_first_until_somebody_has_waited_too_long() -> None:
    assert runs(decide(Horizon(), crowded(PATIENCE - 60.0))) == {"short"}
    plan = decide(Horizon(), crowded(LATE))
    assert runs(plan) == {"long"}
    assert "put first by its turn, after a long wait" in plan.targets["long"].reason


def test_a_turn_lasts_and_then_is_over() -> None:
    picture = crowded(LATE)
    plan = decide(Horizon(), picture)
    picture = apply(plan, picture)
    during = replace(picture, now=picture.now + 60.0)
    plan = decide(Horizon(), during)
    assert runs(plan) == {"long"}
    after = replace(during, now=during.now + TURN + 1.0, policy_state=plan.state)
    jobs = tuple(replace(one, waiting_since=None if one.allocation else after.now) for one in after.jobs)
    assert runs(decide(Horizon(), replace(after, jobs=jobs))) == {"short"}


def test_turns_go_by_the_time_of_waiting_and_leave_the_others_most_of_the_pool() -> None:
    old = [view(f"old-{i}", float(i), 10**9) for i in range(20)]  # all of which a new one's work would delay
    new = [view(f"new-{i}", LATE + 10.0, 6_400) for i in range(8)]
    plan = decide(Horizon(), snapshot(nodes(8), *old, *new, now=LATE + 20.0))
    assert runs(plan) & {one.job_id for one in old} == {f"old-{i}" for i in range(int(8 * MOST))}
    assert len(runs(plan)) == 8


def test_nobody_passes_an_older_one_that_needs_more() -> None:
    wide = view("wide", 0.0, 10**9, count=4)
    narrow = view("narrow", 10.0, 10**9)
    others = [holding(view(f"new-{i}", LATE, 6_400), Slot("cpu-0", i, "cpu"), batch=64) for i in range(4)]
    plan = decide(Horizon(), snapshot(nodes(4), wide, narrow, *others, now=LATE + 20.0))
    assert runs(plan) == {"wide"}


def test_waiting_counts_from_the_last_time_that_the_job_held_slots() -> None:
    ran = replace(view("long", 0.0, 10**9), waiting_since=NOW + LATE - 60.0)
    short = holding(view("short", 1.0, 6_400), Slot("cpu-0", 0, "cpu"), batch=64)
    assert runs(decide(Horizon(), snapshot(nodes(1), ran, short, now=LATE))) == {"short"}


def test_who_needs_more_than_the_pool_has_keeps_nobody_waiting() -> None:
    """As while nodes are away; the queue behind goes on."""
    too_wide = view("too-wide", 0.0, 10**9, count=4)
    old = view("old", 1.0, 10**9)
    short = holding(view("short", 2.0, 6_400, priority=5), Slot("cpu-0", 0, "cpu"), batch=64)
    plan = decide(Horizon(), snapshot(nodes(1), too_wide, old, short, now=LATE))
    assert runs(plan) == {"old"}


def test_who_waits_on_while_turns_hold_their_part_is_not_said_to_be_first_and_takes_from_nobody() -> None:
    old = [view(f"old-{i}", float(i), 10**9) for i in range(4)]
    new = [holding(view(f"new-{i}", LATE, 64_000, 5), Slot("cpu-0", i, "cpu"), batch=64) for i in range(8)]
    plan = decide(Horizon(), snapshot(nodes(8), *old, *new, now=LATE + 20.0))
    turns = {f"old-{i}" for i in range(int(8 * MOST))}
    assert {name for name, target in plan.targets.items() if "put first" in target.reason} == turns
    assert {one.job_id for target in plan.targets.values() for one in target.preempted_by} == turns
