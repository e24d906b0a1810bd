"""Elastic batch, by its stories; the laws that it shares with the others are in test_laws."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings

from elastic_core.domain import JobView, Snapshot
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import admit, queue_of
from elastic_core.policy.saxena.elastic_batch import INTERVAL, ElasticBatch, ElasticBatchDrop
from elastic_core.policy.saxena.objective import HYSTERESIS, SLOT_PRICE, Prospect
from elastic_core.policy.saxena.trials import PAUSE
from tests.policy.builders import apply, decide, holding, job, limits, measured, nodes, point, snapshot
from tests.policy.strategies import BUSY, snapshots

POLICY = ElasticBatch()


def scaling(view: JobView, *tried: int, sync: float = 0.002, cores: int = 99) -> JobView:
    """Measured at these counts: nearly perfect scaling, up to a number of cores."""
    return measured(
        view,
        *(
            point(n, b, 0.001 * b / n * max(1.0, n / cores) + sync * (n > 1), sync * (n > 1))
            for n in tried
            for b in (32, 64)
        ),
    )


def on(view: JobView, picture: Snapshot, first: int, count: int) -> JobView:
    return holding(view, *picture.slots()[first : first + count], batch=64)


def counts(picture: Snapshot) -> dict[str, int]:
    return {job_id: target.num_slots for job_id, target in decide(POLICY, picture).targets.items()}


@settings(BUSY, max_examples=100)
@given(picture=snapshots(types=("cpu",), max_jobs=3))
def test_the_plan_is_worth_as_much_as_the_best_of_all_assignments(picture: Snapshot) -> None:
    """Brute force over every assignment of open counts to the jobs that were let in; exploration comes on top."""
    capacity = picture.capacity()
    let_in = admit(queue_of(picture), capacity).admitted
    found = [
        Prospect.of(view, ["cpu"], Pool.of(picture), {}, picture.now)
        for view in queue_of(picture)
        if view.job_id in let_in
    ]
    tables = [prospect.open_values("cpu") for prospect in found]
    feasible = (chosen for chosen in product(*tables) if sum(chosen) <= capacity.get("cpu", 0))
    best = max(sum(t[n] for t, n in zip(tables, chosen, strict=True)) for chosen in feasible)
    targets = decide(POLICY, picture).targets
    got = sum(prospect.value("cpu", targets[prospect.job.job_id].num_slots) for prospect in found)
    explores = any("tries" in target.reason for target in targets.values())
    assert got > best if explores else got == pytest.approx(best, abs=1e-6)


def test_a_job_alone_grows_step_by_step_as_measurements_come_in() -> None:
    picture = snapshot(nodes(4, 4), job("a", lim=limits(range(1, 9))))
    seen = []
    for _ in range(4):
        plan = decide(POLICY, picture)
        seen.append(plan.targets["a"].num_slots)
        after = apply(plan, picture)
        picture = replace(after, jobs=tuple(scaling(view, seen[-1]) for view in after.jobs))
    assert seen == [2, 4, 8, 8]


def test_what_a_job_holds_is_open_though_never_measured() -> None:
    """Another policy gave it eight slots: that is no reason to start from two again."""
    picture = snapshot(nodes(8))
    view = on(job("a", lim=limits(range(1, 9))), picture, 0, 8)
    assert counts(snapshot(nodes(8), view)) == {"a": 8}


def test_exploring_is_said_and_never_takes_slots_that_another_job_can_use() -> None:
    picture = snapshot(nodes(4))
    alone = on(scaling(job("a"), 1), picture, 0, 1)
    plan = decide(POLICY, snapshot(nodes(4), alone))
    assert plan.targets["a"].reason.startswith("tries 2 slots of cpu while nobody else needs them: predicted")
    crowd = [on(scaling(job(name), 1), picture, i, 1) for i, name in enumerate("abcd")]
    assert counts(snapshot(nodes(4), *crowd)) == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_what_was_lent_to_explore_is_given_back_when_a_job_arrives() -> None:
    picture = snapshot(nodes(4))
    exploring = on(scaling(job("a"), 1, 2), picture, 0, 4)
    assert counts(snapshot(nodes(4), exploring, job("b", arrived=50))) == {"a": 2, "b": 2}


def test_slots_that_gain_little_stay_free_and_it_says_so() -> None:
    """Four CPU slots on two cores."""
    picture = snapshot(nodes(2, 2))
    view = on(scaling(job("a"), 1, 2, 4, cores=2), picture, 0, 4)
    target = decide(POLICY, snapshot(nodes(2, 2), view)).targets["a"]
    assert target.num_slots == 2
    assert "shrinks from 4 to 2 slots of cpu" in target.reason
    assert "more slots gain little: 4 slots measured" in target.reason
    assert f"and {SLOT_PRICE:.2f} is asked for; the rest stays free" in target.reason
    stays = on(scaling(job("a"), 1, 2, 4, cores=2), picture, 0, 2)
    assert counts(snapshot(nodes(2, 2), stays)) == {"a": 2}


def test_slots_go_to_the_job_that_scales() -> None:
    flat = scaling(job("flat"), 1, 2, 4, cores=1)
    steep = scaling(job("steep", arrived=1), 1, 2, 4)
    assert counts(snapshot(nodes(5), flat, steep)) == {"flat": 1, "steep": 4}


def test_a_resize_must_pay_back_over_the_remaining_work() -> None:
    picture = snapshot(nodes(4))
    view = on(scaling(job("a", resize_seconds=20.0), 1, 2, 4), picture, 0, 2)
    long_way = replace(view, total_samples=10**6)
    nearly_done = replace(view, total_samples=10**6, done_samples=10**6 - 20_000)  # ten seconds at two slots
    assert counts(snapshot(nodes(4), long_way)) == {"a": 4}
    assert counts(snapshot(nodes(4), nearly_done)) == {"a": 2}


def test_measurement_noise_moves_nobody() -> None:
    picture = snapshot(nodes(4))
    for wobble in (-0.4, 0.4):
        a = on(scaling(job("a"), 1, 2, 3, sync=0.002), picture, 0, 2)
        b = on(scaling(job("b"), 1, 2, 3, sync=0.002 * (1 + wobble)), picture, 2, 2)
        assert counts(snapshot(nodes(4), a, b)) == {"a": 2, "b": 2}
    assert HYSTERESIS >= 0.05


def test_a_count_that_ends_without_a_measurement_is_left_alone_for_a_while() -> None:
    """The processes die on four slots before they report, with no decision between grant and death."""
    picture = snapshot(nodes(4), on(scaling(job("a"), 1, 2), snapshot(nodes(4)), 0, 2))
    tries = decide(POLICY, picture)
    assert tries.targets["a"].num_slots == 4
    died = replace(picture.jobs[0], allocation=None, last_resize_at=picture.now + 10)
    after = decide(POLICY, snapshot(nodes(4), died, now=120.0, state=tries.state))
    assert after.targets["a"].num_slots == 2
    assert "4 slots could be had, but the last start on them ended without a measurement" in after.targets["a"].reason
    soon = decide(POLICY, snapshot(nodes(4), died, now=120.0 + PAUSE - 1, state=after.state))
    assert soon.targets["a"].num_slots == 2
    assert decide(POLICY, snapshot(nodes(4), died, now=120.0 + PAUSE, state=soon.state)).targets["a"].num_slots == 4


def test_a_first_start_that_dies_is_started_smaller() -> None:
    first = decide(POLICY, snapshot(nodes(4), job("a")))
    assert first.targets["a"].num_slots == 2
    died = replace(job("a"), last_batch=32)
    assert decide(POLICY, snapshot(nodes(4), died, now=110.0, state=first.state)).targets["a"].num_slots == 1


@pytest.mark.parametrize(
    "state", [{"trials": 3}, {"trials": {"a": 3}}, {"trials": {"a": {"cpu:2": {"old": 1}}}}, {"x": 1}]
)
def test_state_of_another_version_is_forgotten(state: dict[str, object]) -> None:
    assert decide(POLICY, snapshot(nodes(4), job("a"), state=state)).targets["a"].num_slots == 2


def test_a_trial_is_not_failed_while_the_job_is_on_its_way_there() -> None:
    """Between the boundary and the new grant the job holds nothing, and many events may pass."""
    running = on(scaling(job("a"), 1, 2), snapshot(nodes(4)), 0, 2)
    plan = decide(POLICY, snapshot(nodes(4), running))
    for now in (105.0, 110.0, 115.0):
        between = snapshot(nodes(4), replace(running, allocation=None), now=now, state=plan.state)
        plan = decide(POLICY, between)
        assert plan.targets["a"].num_slots == 4
    arrived = on(replace(running, last_resize_at=between.now + 1), between, 0, 4)
    for now in (120.0, 180.0):
        plan = decide(POLICY, snapshot(nodes(4), arrived, now=now, state=plan.state))
        assert plan.targets["a"].num_slots == 4
        assert plan.state["trials"]["a"]["cpu:4"]["failed_at"] is None


def test_when_not_all_fit_the_order_of_arrival_decides_and_priority_is_a_head_start() -> None:
    two = limits((2,))
    waiting = snapshot(nodes(2), job("a", lim=two), job("b", arrived=10, lim=two))
    assert counts(waiting) == {"a": 2, "b": 0}
    assert (
        "waits: it needs at least 2 slots of any type, and 1 job before it"
        in decide(POLICY, waiting).targets["b"].reason
    )
    urgent = snapshot(nodes(2), job("a", lim=two), job("b", arrived=10, lim=two, priority=1))
    assert counts(urgent) == {"a": 0, "b": 2}


def test_the_papers_other_rule_turns_the_newest_away_for_good() -> None:
    two = limits((2,))
    drop = ElasticBatchDrop()
    picture = snapshot(nodes(2), job("a", lim=two), job("b", arrived=10, lim=two))
    plan = decide(drop, picture)
    assert plan.targets["b"].reason.startswith("turned away: the pool could not hold the smallest counts of all jobs")
    alone = replace(picture, jobs=picture.jobs[1:], policy_state=plan.state)
    assert decide(drop, alone).targets["b"].num_slots == 0
    assert decide(drop, replace(alone, policy_state={})).targets["b"].num_slots == 2


def test_a_job_moves_to_idle_slots_of_a_faster_type_it_has_measured() -> None:
    pool = nodes(2) + nodes(2, kind="h200")
    slow = job("a", lim=limits((1, 2)))
    slow = measured(
        slow, *(point(n, 64, 0.064 / n) for n in (1, 2)), *(point(n, 64, 0.008 / n, kind="h200") for n in (1, 2))
    )
    target = decide(POLICY, snapshot(pool, on(slow, snapshot(pool), 0, 2))).targets["a"]
    assert dict(target.counts) == {"h200": 2}
    assert target.reason.startswith("moves from 2 slots of cpu to 2 slots of h200: measured")


def test_the_autoscaler_wakes_up_every_interval_while_there_are_jobs() -> None:
    picture = snapshot(nodes(2), job("a"))
    assert decide(POLICY, picture).wake_at == picture.now + INTERVAL
    assert decide(POLICY, snapshot(nodes(2))).wake_at is None
