"""Jobs over parameter servers: their single units, the checks of their targets, and policies that know only slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_core.domain import Allocation, JobView, Layout, ProfilePoint, Roles, SegmentState, ServerLimits, Snapshot
from elastic_core.policy import registry
from elastic_core.policy.aiturbo.marginal import Claim, allot, cheapest
from elastic_core.policy.baselines.optimus import Optimus
from elastic_core.policy.plans.plan_check import violations
from elastic_core.policy.task_memory.task_profiles import TaskProfiles
from elastic_core.sim.testbed.aiturbo_with_servers import AITurboWithServers
from elastic_core.sim.testbed.server_sizes import ServerSizes, Shape, server_speed
from elastic_core.sim.testbed.with_servers import ServerKnowledge, WithServers
from tests.policy.builders import NOW, decide, job, limits, nodes, snapshot

POOL = (*nodes(4, kind="gpu"), *nodes(40, kind="cpu"))
SERVERS = ServerLimits(
    max_workers=4, max_servers=10, worker_cores=5, max_server_cores=5, requested_workers=2, requested_servers=1,
    requested_server_cores=5,
)  # fmt: skip


def a_job(job_id: str, arrived: float = 0.0, *, exchange: float = 0.4, **more: Any) -> JobView:
    """Batch 64; a step computes for 0.8 s over the workers, and exchanges for `exchange` x workers / servers."""
    view = job(
        job_id, arrived, limits((1, 2, 3, 4), (64, 64), servers=SERVERS, types=("gpu",), requested_slots=2), **more
    )
    points = tuple(
        ProfilePoint(
            num_slots=workers, num_nodes=1, type="gpu", global_batch=64, local_batch=64 // workers, accumulation=1,
            step_seconds=0.8 / workers + exchange * workers / servers, sync_seconds=exchange * workers / servers,
            count=30, roles=roles(workers, servers), server_cores=1.0,
        )
        for workers, servers in ((1, 1), (1, 4), (2, 1), (2, 4), (4, 4))
    )  # fmt: skip
    return replace(view, profile=points)


def roles(workers: int, servers: int) -> Roles:
    return (("server", servers), ("worker", workers))


def holding(view: JobView, shape: Shape) -> JobView:
    gpus, cores = POOL[0].slots(), POOL[1].slots()
    size = shape.size(SERVERS)
    allocation = Allocation(
        slots=(*cores[: size.count("cpu")], *gpus[: size.count("gpu")]),
        global_batch=64,
        layout=Layout(data=shape.workers),
        roles=size.roles,
    )
    return replace(view, allocation=allocation, allocated_since=NOW, segment_state=SegmentState.RUNNING)


def shapes(view: JobView, sizes: list[Any]) -> dict[str, Shape]:
    return {unit: ServerSizes(view).shape(size) for unit, size in sizes}


# Units and service


def test_service_is_ten_a_gpu_and_five_for_a_process_with_five_cores() -> None:
    assert Shape(2, 1, 2, 5).size(SERVERS).service_rate == 2 * 10 + 3 * 5
    assert Shape(2, 1, 2, 1).size(SERVERS).service_rate == 2 * 10 + 2 * 5 + 1
    assert AITurboWithServers().held_rate(holding(a_job("a"), Shape(2, 1, 2, 5))) == 35


def test_five_units_can_be_added_and_taken() -> None:
    sizes = ServerSizes(a_job("a"))
    now = Shape(2, 2, 1, 3).size(SERVERS)
    assert shapes(a_job("a"), list(sizes.larger(now))) == {
        "worker": Shape(3, 2, 2, 3), "worker on the same GPUs": Shape(3, 2, 1, 3), "server": Shape(2, 3, 1, 3),
        "CPU share": Shape(2, 2, 1, 4), "GPU": Shape(2, 2, 2, 3),
    }  # fmt: skip
    assert shapes(a_job("a"), list(sizes.smaller(now)))["worker on the same GPUs"] == Shape(1, 2, 1, 3)
    two = Shape(2, 2, 2, 3).size(SERVERS)
    assert shapes(a_job("a"), list(sizes.smaller(two))) == {
        "worker": Shape(1, 2, 1, 3), "server": Shape(2, 1, 2, 3), "CPU share": Shape(2, 2, 2, 2),
        "GPU": Shape(2, 2, 1, 3),
    }  # fmt: skip


def test_limits_end_the_units() -> None:
    sizes = ServerSizes(a_job("a"))
    assert [unit for unit, _ in sizes.larger(Shape(4, 10, 4, 5).size(SERVERS))] == []
    assert [unit for unit, _ in sizes.smaller(Shape(1, 1, 1, 1).size(SERVERS))] == []


def test_a_job_that_exchanges_much_claims_more_servers_than_one_that_computes() -> None:
    """From the same request, by single units that each save service."""

    def servers(exchange: float) -> int:
        sizes = ServerSizes(a_job("a", exchange=exchange))
        return sizes.shape(cheapest(sizes, sizes.requested.size(SERVERS))).servers

    assert servers(0.8) > servers(0.05) >= 1


def test_a_server_on_more_cores_counts_as_more_than_one() -> None:
    assert server_speed(1) == 1.0
    assert 1.0 < server_speed(2) < server_speed(5) < 1.2
    sizes = ServerSizes(a_job("a"))
    assert sizes.speed(Shape(1, 1, 1, 5).size(SERVERS)) > sizes.speed(Shape(1, 1, 1, 1).size(SERVERS))


def sharing_point(workers: int, compute: float) -> ProfilePoint:
    """On one GPU; the exchange takes no time to speak of."""
    return ProfilePoint(
        num_slots=1, num_nodes=1, type="gpu", global_batch=64, local_batch=64 // workers, accumulation=1,
        step_seconds=compute + 0.01 * workers, sync_seconds=0.01 * workers, count=30, roles=roles(workers, 2),
        server_cores=1.0,
    )  # fmt: skip


def test_how_workers_share_a_gpu_is_learnt_from_who_did() -> None:
    """Two workers on one GPU: each has half the samples, and is slowed down by 1.4, or by 2.5."""
    alone = sharing_point(1, 0.8)
    well = replace(a_job("a"), profile=(alone, sharing_point(2, 0.4 * 1.4)))
    badly = replace(a_job("a"), profile=(alone, sharing_point(2, 0.4 * 2.5)))
    one, two = Shape(1, 2, 1, 1).size(SERVERS), Shape(2, 2, 1, 1).size(SERVERS)

    def gain(view: JobView) -> float:
        return ServerSizes(view).speed(two) / ServerSizes(view).speed(one)

    assert gain(well) == pytest.approx(0.81 / 0.58, rel=0.1)
    assert gain(badly) < 1.0
    assert gain(badly) < gain(replace(a_job("a"), profile=(alone,))) < gain(well)  # nobody shared yet


def test_a_task_profile_measured_over_servers_speaks_for_a_job_never_measured() -> None:
    known, fresh = a_job("known", task="t"), replace(a_job("fresh", task="t"), profile=())
    profiles = TaskProfiles.of(
        TaskProfiles.of({}, [known]).to_state() and {"kin": TaskProfiles.of({}, [known]).to_state()}, []
    )
    taught = profiles.fill_in(fresh)
    asked = Shape(2, 1, 2, 5).size(SERVERS)
    assert ServerSizes(taught).speed(asked) == ServerSizes(known).speed(asked)
    assert ServerSizes(taught).speed(asked) != ServerSizes(fresh).speed(asked)


# AITurbo on them


def test_where_cores_are_scarce_a_claim_goes_without_the_units_that_it_misses_least() -> None:
    """It would have several servers; of what the room leaves it keeps the worker, and one server less at a time."""
    found = Claim.of(ServerSizes(a_job("a", exchange=0.8)), {"gpu": 4, "cpu": 40}, predictable=True, attained=0.0)
    assert found.claimed is not None
    assert found.claimed.count("cpu") > 7
    granted = allot([found], {"gpu": 4, "cpu": 7})["a"]
    assert ServerSizes(a_job("a")).shape(granted) == Shape(1, 2, 1, 1)
    assert allot([found], {"gpu": 4, "cpu": 5}) == {}


def test_aiturbo_gives_valid_plans_and_repeats_the_one_in_force() -> None:
    picture = snapshot(POOL, *(a_job(f"job-{i}", i, total_samples=10_000 * (i + 1)) for i in range(8)))
    plan = decide(AITurboWithServers(), picture)
    assert violations(plan, picture) == ()
    running = [target for target in plan.targets.values() if target.num_slots]
    assert len(running) == 4
    assert all(target.counts["gpu"] == 1 and dict(target.roles)["worker"] == 1 for target in running)
    assert "server" in running[0].reason
    assert "worker" in running[0].reason
    assert decide(AITurboWithServers(), replace(picture, policy_state=plan.state)).targets == plan.targets


def test_service_attained_over_servers_is_counted_by_what_is_held() -> None:
    view = holding(a_job("a"), Shape(2, 1, 2, 5))
    picture = replace(snapshot(POOL, view, now=20.0), policy_state={"service": {"a": [100.0, NOW + 10.0]}})
    assert AITurboWithServers().attained_service(view, picture) == pytest.approx(100.0 + 10.0 * 35)


# Policies that know only slots


def with_servers(name: str, rule: Any = "requested") -> WithServers:
    return WithServers(registry.get(name), rule)


@pytest.mark.parametrize("name", ["tiresias", "optimus", "fair_share", "srtf"])
@pytest.mark.parametrize("rule", ["requested", "best"])
def test_any_policy_gives_valid_plans_beside_ordinary_jobs(name: str, rule: Any) -> None:
    plain = job("plain", 3.0, limits((1, 2), (16, 64), types=("gpu",)))
    held = holding(a_job("held"), Shape(2, 1, 2, 5))
    picture = snapshot(POOL, held, a_job("b", 1.0), a_job("c", 2.0), plain)
    plan = decide(with_servers(name, rule), picture)
    assert violations(plan, picture) == ()
    assert plan.targets["plain"].roles == ()
    assert any(target.roles for target in plan.targets.values())


def test_an_inelastic_policy_gives_what_was_asked_for() -> None:
    target = decide(with_servers("tiresias"), snapshot(POOL, a_job("a"))).targets["a"]
    assert (dict(target.counts), target.roles) == ({"gpu": 2, "cpu": 15}, roles(2, 1))
    assert "with 1 parameter server" in target.reason


def test_the_best_rule_gives_servers_to_whom_they_help_most() -> None:
    much, little = a_job("much", exchange=0.8), a_job("little", 1.0, exchange=0.02)
    plan = decide(with_servers("tiresias", "best"), snapshot(POOL, much, little))
    servers = {job_id: dict(target.roles)["server"] for job_id, target in plan.targets.items()}
    assert servers["much"] > servers["little"]


def test_without_cores_for_a_server_a_job_waits_and_says_so() -> None:
    scarce = (*nodes(4, kind="gpu"), *nodes(15, kind="cpu"))
    plan = decide(with_servers("tiresias"), snapshot(scarce, a_job("a"), a_job("b", 1.0)))
    assert plan.targets["a"].num_slots
    assert plan.targets["b"].reason.startswith("waits: no CPU cores are left for its servers")


def test_optimus_knows_these_jobs_by_their_own_form() -> None:
    """Exchange grows with the workers, but the best number of servers goes with it."""
    picture: Snapshot = snapshot(POOL, a_job("a", exchange=0.05, total_samples=10**6))
    plan = decide(WithServers(Optimus(ServerKnowledge(10, 5)), "best"), picture)
    assert dict(plan.targets["a"].roles)["worker"] == 4
    hardly = snapshot(POOL, a_job("a", exchange=8.0, total_samples=10**6))
    assert dict(decide(WithServers(Optimus(ServerKnowledge(10, 5)), "best"), hardly).targets["a"].roles)["worker"] == 1
