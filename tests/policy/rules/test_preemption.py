"""Who preempted whom: who has the slots of a stopped job by a rule, and nobody else."""

from __future__ import annotations

from dataclasses import replace

from elastic_core.domain import JobView, Plan, Preemptor, PutFirst, Queue, Slot
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.rules.starvation import PATIENCE
from tests.policy.builders import decide, holding, job, limits, measured, nodes, point, snapshot


def view(name: str, arrived: float = 0.0, work: int = 64_000, fewest: int = 1, **more: object) -> JobView:
    lim = limits([k for k in (1, 2, 4) if k >= fewest], batch=(64, 64))
    points = [point(k, 64, 1.0 / k**0.9, sync=0.01) for k in (1, 2, 4)]
    return measured(job(name, arrived, lim, total_samples=work, task=name, **more), *points)


def on(one: JobView, first: int, count: int) -> JobView:
    return holding(one, *(Slot("cpu-0", first + i, "cpu") for i in range(count)), batch=64)


def preempted(plan: Plan) -> dict[str, tuple[tuple[str, PutFirst], ...]]:
    return {name: tuple((by.job_id, by.rule) for by in target.preempted_by) for name, target in plan.targets.items()}


def test_a_job_stopped_for_a_higher_priority_is_preempted_by_it() -> None:
    low = on(view("low", work=640, resize_seconds=600.0), 0, 4)
    urgent = view("urgent", 1.0, work=10**9, fewest=4, priority=10)
    plan = decide(Horizon(), snapshot(nodes(4), low, urgent))
    (by,) = plan.targets["low"].preempted_by
    assert by == Preemptor(job_id="urgent", rule=PutFirst.PRIORITY, priority=10, queue="default")
    assert plan.targets["urgent"].preempted_by == ()


def test_who_gets_none_of_the_lost_slots_preempted_nobody() -> None:
    """The third has a higher priority too, and keeps what it holds."""
    low = on(view("low", work=640, resize_seconds=600.0), 0, 2)
    third = on(replace(view("third", work=10**9, priority=20), limits=limits((2,), batch=(64, 64))), 2, 2)
    urgent = view("urgent", 1.0, work=10**9, fewest=2, priority=10)
    assert preempted(decide(Horizon(), snapshot(nodes(4), low, third, urgent))) == {
        "low": (("urgent", PutFirst.PRIORITY),), "third": (), "urgent": (),
    }  # fmt: skip


def test_slots_that_the_objective_gives_to_an_equal_are_no_preemption() -> None:
    long = on(view("long", work=10**9, fewest=4, resize_seconds=1.0), 0, 4)
    short = view("short", 1.0, work=6_400, fewest=4, resize_seconds=1.0)
    plan = decide(Horizon(), snapshot(nodes(4), long, short))
    assert (plan.targets["long"].num_slots, plan.targets["short"].num_slots) == (0, 4)
    assert preempted(plan) == {"long": (), "short": ()}


def test_a_queue_that_takes_its_guaranteed_share_back_preempts_who_borrowed_it() -> None:
    borrower = on(view("borrower", work=640, fewest=4), 0, 4)
    owner = view("owner", 1.0, work=10**9, fewest=4, queue="prod")
    picture = replace(snapshot(nodes(4), borrower, owner), queues=(Queue(name="prod", guaranteed={"cpu": 4}),))
    (by,) = decide(Horizon(), picture).targets["borrower"].preempted_by
    assert (by.job_id, by.rule, by.queue) == ("owner", PutFirst.GUARANTEE, "prod")


def test_whose_turn_it_is_after_a_long_wait_preempts() -> None:
    short = on(view("short", 1.0, work=6_400, fewest=4, priority=5), 0, 4)
    long = view("long", 0.0, work=10**9, fewest=4)
    plan = decide(Horizon(), snapshot(nodes(4), long, short, now=PATIENCE + 60.0))
    assert preempted(plan)["short"] == (("long", PutFirst.TURN),)
