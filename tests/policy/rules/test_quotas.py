"""Guaranteed shares: lent while unused, given back when asked for."""

from __future__ import annotations

from dataclasses import replace

from elastic_core.domain import JobView, Plan, Queue, Slot
from elastic_core.policy.horizon.horizon import Horizon, problem
from elastic_core.policy.rules.quotas import QueueQuotas
from tests.policy.builders import decide, holding, job, limits, measured, nodes, point, snapshot

WIDE = limits((1, 2, 4, 8), batch=(64, 64))
SHARES = (Queue(name="prod", guaranteed={"cpu": 6}), Queue(name="research", guaranteed={"cpu": 2}))


def scales(
    name: str, queue: str, arrived: float = 0.0, work: int = 64_000, lim: object = WIDE, **more: object
) -> JobView:
    points = [point(k, 64, 1.0 / k**0.9, sync=0.01) for k in (1, 2, 4, 8)]
    return measured(job(name, arrived, lim, total_samples=work, task=name, queue=queue, **more), *points)  # type: ignore[arg-type]


def on(view: JobView, first: int, count: int) -> JobView:
    return holding(view, *(Slot("cpu-0", first + i, "cpu") for i in range(count)), batch=64)


def plan_of(*jobs: JobView, queues: tuple[Queue, ...] = SHARES) -> Plan:
    return decide(Horizon(), replace(snapshot(nodes(8), *jobs), queues=queues))


def slots_of(plan: Plan) -> dict[str, int]:
    return {name: target.num_slots for name, target in plan.targets.items()}


def test_what_a_queue_does_not_use_is_lent() -> None:
    assert slots_of(plan_of(scales("r", "research"))) == {"r": 8}
    assert slots_of(plan_of(scales("d", "default"))) == {"d": 8}


def test_it_is_given_back_when_the_owner_asks() -> None:
    borrower = on(scales("r", "research", work=640), 0, 8)
    owner = scales("p", "prod", 1.0, work=10**9)
    without = slots_of(plan_of(borrower, owner, queues=()))
    assert without["p"] < 6
    plan = plan_of(borrower, owner)
    assert slots_of(plan)["p"] >= 4
    assert "put first by the guaranteed share of queue prod" in plan.targets["p"].reason


def test_the_owner_gets_what_its_jobs_would_have_on_its_share_alone() -> None:
    """Sharing costs nobody anything, however short the others' work is."""
    owners = [scales(f"p{i}", "prod", work=10**8, lim=limits((2,), batch=(64, 64))) for i in range(3)]
    others = [scales(f"r{i}", "research", 1.0, work=6_400) for i in range(8)]
    found = slots_of(plan_of(*owners, *others))
    assert [found[one.job_id] for one in owners] == [2, 2, 2]


def test_the_cheapest_restart_is_stopped_first() -> None:
    only = limits((4,), batch=(64, 64))
    dear = on(scales("dear", "research", work=10**6, lim=only, resize_seconds=600.0), 0, 4)
    cheap = on(scales("cheap", "research", work=6_400, lim=only, resize_seconds=5.0), 4, 4)
    owner = scales("p", "prod", 1.0, work=10**9, lim=only)
    assert slots_of(plan_of(dear, cheap, owner)) == {"dear": 4, "cheap": 0, "p": 4}


def test_a_higher_priority_of_another_queue_takes_nothing_that_is_guaranteed() -> None:
    owner = on(scales("p", "prod", lim=limits((4,), batch=(64, 64))), 0, 4)
    borrower = on(scales("r", "research", lim=limits((4,), batch=(64, 64))), 4, 4)
    high = scales("d", "default", 1.0, work=10**9, lim=limits((8,), batch=(64, 64)), priority=50)
    found = slots_of(plan_of(owner, borrower, high))
    assert found["p"] == 4
    assert found["d"] == 0


def test_without_nodes_guarantees_shrink_in_proportion() -> None:
    picture = snapshot(nodes(4), scales("p", "prod"), scales("r", "research"))
    shared = problem(picture)
    assert shared is not None
    assert QueueQuotas.of(SHARES, picture.jobs, shared.options).guaranteed.tolist() == [[3], [1], [0]]
