"""AITurbo: who goes first, how much each gets unit by unit, and when that is decided again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_core.domain import JobView, Node, Plan, Snapshot
from elastic_core.policy.aiturbo.aiturbo import INTERVAL, AITurbo, is_predictable
from elastic_core.policy.aiturbo.borda import FIRST_QUEUE
from elastic_core.policy.aiturbo.marginal import Claim, allot, cheapest
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.parameter_servers.sizes import Size, SlotSizes, service_rate
from elastic_core.policy.plans.plan_check import violations
from tests.policy.builders import NOW, apply, decide, holding, job, limits, measured, nodes, point, snapshot

FOUR = nodes(4, kind="h200")
SLOT = 15.0  # units of service a second: a GPU and its worker


def a_job(job_id: str, arrived: float = 0.0, *, asks: int = 1, scales: bool = False, **more: Any) -> JobView:
    """One to four slots, 16 samples a step; a step takes 1 s on one slot, on n hardly less or, where it scales, 1/n."""
    view = job(job_id, arrived, limits((1, 2, 3, 4), (16, 16), requested_slots=asks), **more)
    points = [point(1, 16, 1.0, kind="h200")]
    for n in (2, 3, 4):
        sync = 0.001 if scales else 0.9 - 1.0 / n
        points.append(point(n, 16, 1.0 / n + sync, sync, kind="h200"))
    return measured(view, *points)


def counts(plan: Plan) -> dict[str, int]:
    return {job_id: target.num_slots for job_id, target in plan.targets.items()}


def sizes(view: JobView, pool: tuple[Node, ...] = FOUR) -> SlotSizes:
    picture = snapshot(pool, view)
    return SlotSizes(view, picture.capacity(), Pool.of(picture))


def claim(view: JobView, *, predictable: bool = True, attained: float = 0.0) -> Claim:
    return Claim.of(sizes(view), {"h200": 4}, predictable=predictable, attained=attained)


def slots(count: int) -> Size:
    return Size(counts=(("h200", count),), service_rate=SLOT * count)


def held(picture: Snapshot, *job_ids: str) -> list[int]:
    found = {view.job_id: view.allocation.num_slots if view.allocation else 0 for view in picture.jobs}
    return [found[job_id] for job_id in job_ids]


def later(picture: Snapshot, seconds: float, *newcomers: JobView) -> Snapshot:
    return replace(picture, now=picture.now + seconds, jobs=(*picture.jobs, *newcomers))


# The currency, and single units


def test_service_is_ten_a_gpu_and_five_a_process() -> None:
    assert service_rate({"h200": 2}) == 2 * (10 + 5)
    assert service_rate({"cpu": 3}) == 3 * 5
    assert slots(2).service_rate == service_rate({"h200": 2})


def test_units_are_taken_while_each_saves_service() -> None:
    assert cheapest(sizes(a_job("a")), slots(4)) == slots(1)


def test_a_unit_is_added_where_it_saves_service() -> None:
    """A job whose model says that two slots are more than twice as fast as one: 1.5 s on one, 0.5 s on two."""
    view = job("a", 0.0, limits((1, 2), (16, 16), requested_slots=1))
    found = sizes(view)
    found._speeds["h200"] = {1: 16 / 1.5, 2: 16 / 0.5}
    assert cheapest(found, slots(1)) == slots(2)


def test_a_claim_is_the_cheapest_size_whether_the_end_can_be_predicted_or_not() -> None:
    """What cannot be predicted is how long a job is, not how fast."""
    assert claim(a_job("a", asks=3)).claimed == slots(1)
    assert claim(a_job("a", asks=3), predictable=False).claimed == slots(1)


def test_a_running_job_keeps_its_size_unless_another_saves_more_than_the_restart() -> None:
    """On two slots it needs 30 units of service a step of 0.9 s, on one 15 units a second."""
    on_two = holding(a_job("a", total_samples=16 * 10, resize_seconds=20.0), *FOUR[0].slots()[:2])
    assert claim(on_two).claimed == slots(2)
    assert claim(replace(on_two, total_samples=16 * 1000)).claimed == slots(1)


def test_the_gain_of_a_unit_is_jobs_completed_per_service() -> None:
    """1600 samples at 16 a second are 100 s on one slot, 50 s on two: 1/100 of a job a second more for 15 units."""
    found = claim(a_job("a", scales=True, total_samples=1600))
    assert found.gain(slots(1), slots(2)) == pytest.approx(0.01 / SLOT, rel=0.15)
    longer = claim(a_job("b", scales=True, total_samples=16_000))
    assert longer.gain(slots(1), slots(2)) == pytest.approx(found.gain(slots(1), slots(2)) / 10, rel=0.01)


def test_what_an_unpredictable_job_has_attained_is_the_guess_of_what_it_needs() -> None:
    found = claim(a_job("a"), predictable=False, attained=10 * FIRST_QUEUE)
    assert found.remaining_service == 10 * FIRST_QUEUE
    assert found.seconds(slots(1)) == pytest.approx(10 * FIRST_QUEUE / SLOT)


def test_a_restart_has_to_be_won_back() -> None:
    on_one = holding(a_job("a", scales=True, total_samples=1600, resize_seconds=10.0), *FOUR[0].slots()[:1])
    assert claim(on_one).pays(slots(1), slots(2))  # saves about 50 s
    almost_done = replace(on_one, done_samples=1500)  # saves about 3 s
    assert not claim(almost_done).pays(slots(1), slots(2))
    assert claim(replace(almost_done, allocation=None)).pays(slots(1), slots(2))


# Placement


def test_claims_come_before_anybody_grows() -> None:
    claims = [claim(a_job("short", scales=True, total_samples=1600)), claim(a_job("long", scales=True))]
    assert allot(claims, {"h200": 2}) == {"short": slots(1), "long": slots(1)}


def test_what_is_left_goes_where_the_gain_is_largest() -> None:
    claims = [claim(a_job("long", scales=True)), claim(a_job("short", scales=True, total_samples=1600))]
    assert allot(claims, {"h200": 4}) == {"long": slots(1), "short": slots(3)}


def test_a_claim_that_does_not_fit_shrinks_and_then_waits() -> None:
    running = holding(a_job("first", scales=True, total_samples=1600), *FOUR[0].slots()[:3])
    also = holding(a_job("second", scales=True, total_samples=1600), *FOUR[0].slots()[:3])
    claims = [claim(running), claim(also), claim(a_job("third"))]
    assert [found.claimed for found in claims] == [slots(3), slots(3), slots(1)]
    assert allot(claims, {"h200": 4}) == {"first": slots(3), "second": slots(1)}


def test_idle_slots_of_a_faster_type_are_a_unit_too() -> None:
    """A slot of the other type was seen to be four times as fast; what it costs is the restart."""
    both = (*FOUR, *nodes(4, kind="old"))
    view = measured(a_job("a", total_samples=10**5), point(1, 16, 4.0, kind="old"))
    on_old = holding(view, both[1].slots()[0])
    found = Claim.of(sizes(on_old, both), {"h200": 4, "old": 4}, predictable=True, attained=0.0)
    assert found.claimed == Size(counts=(("old", 1),), service_rate=SLOT)
    assert allot([found], {"h200": 1, "old": 1})["a"] == slots(1)
    assert allot([found], {"h200": 0, "old": 1})["a"] == found.claimed
    nearly_done = replace(on_old, done_samples=10**5 - 16)
    found = Claim.of(sizes(nearly_done, both), {"h200": 4, "old": 4}, predictable=True, attained=0.0)
    assert allot([found], {"h200": 1, "old": 1})["a"] == found.claimed


# The whole decision


def test_short_predictable_jobs_and_newcomers_overtake_what_has_run_for_long() -> None:
    """`known-short` and `fresh` are in the first queue; both have attained nothing, and a gain beats no gain."""
    old = holding(a_job("old", -9000, attained_slot_seconds=9000.0, total_samples=None), *FOUR[0].slots()[:1])
    known_long = a_job("known-long", total_samples=10**6)
    known_short = a_job("known-short", total_samples=160)
    fresh = a_job("fresh", total_samples=None)
    plan = decide(AITurbo(), snapshot(nodes(2, kind="h200"), old, known_long, known_short, fresh))
    assert counts(plan) == {"old": 0, "known-long": 0, "known-short": 1, "fresh": 1}
    assert (
        "queue 1, place 1 of 4: placed by what it still needs and what it attained"
        in plan.targets["known-short"].reason
    )
    assert "what it still needs cannot be predicted" in plan.targets["old"].reason
    assert plan.targets["old"].reason.startswith("waits")


def test_a_reason_stays_true_while_service_is_attained() -> None:
    """Attained service grows with every second, which no decision follows."""
    reasons = []
    for attained in (100.0, 101.0):
        running = a_job("a", attained_slot_seconds=attained, total_samples=None)
        known = a_job("b", attained_slot_seconds=attained, done_samples=int(attained))
        plan = decide(AITurbo(), snapshot(nodes(2, kind="h200"), running, known))
        reasons.append([target.reason for target in plan.targets.values()])
    assert reasons[0] == reasons[1]


def test_the_classifier_is_believed_over_the_declaration() -> None:
    """Said to be nearly done, by a user whose job the classifier does not trust: served by what it has attained."""
    boast = a_job("boast", total_samples=160, predictable=0.2, attained_slot_seconds=9000.0)
    honest = a_job("honest", total_samples=16_000, predictable=0.9)
    plan = decide(AITurbo(), snapshot(nodes(1, kind="h200"), boast, honest))
    assert counts(plan) == {"boast": 0, "honest": 1}
    trusted = decide(AITurbo(), snapshot(nodes(1, kind="h200"), replace(boast, predictable=0.8), honest))
    assert counts(trusted) == {"boast": 1, "honest": 0}


def test_undeclared_work_is_known_from_the_loss_curve_where_the_classifier_says_so() -> None:
    told = a_job("told", total_samples=None, expected_samples=160.0, predictable=0.9)
    distrusted, unasked = replace(told, predictable=0.2), replace(told, predictable=None)
    assert [is_predictable(view) for view in (told, distrusted, unasked)] == [True, False, False]
    assert not is_predictable(replace(told, expected_samples=None))
    declared = a_job("long", total_samples=16_000, attained_slot_seconds=0.0)
    plan = decide(AITurbo(), snapshot(nodes(1, kind="h200"), declared, told))
    assert counts(plan) == {"long": 0, "told": 1}
    plan = decide(AITurbo(), snapshot(nodes(1, kind="h200"), declared, replace(told, expected_samples=10**6)))
    assert counts(plan) == {"long": 1, "told": 0}


def test_attained_service_follows_what_is_held() -> None:
    view = holding(a_job("a", attained_slot_seconds=100.0), *FOUR[0].slots()[:2])
    picture = snapshot(FOUR, view, now=0.0)
    assert AITurbo().attained_service(view, picture) == 100.0 * SLOT
    plan = decide(AITurbo(), picture)
    after = replace(picture, now=NOW + 20.0, policy_state=plan.state)
    assert AITurbo().attained_service(view, after) == pytest.approx(100.0 * SLOT + 20.0 * 2 * SLOT)
    since = replace(view, allocated_since=NOW + 15.0)
    assert AITurbo().attained_service(since, after) == pytest.approx(100.0 * SLOT + 5.0 * 2 * SLOT)


def test_a_running_job_is_demoted_when_it_has_used_up_its_queue_and_the_policy_wakes_for_it() -> None:
    attained = FIRST_QUEUE / SLOT - 30.0  # seconds, half a minute before it is demoted
    running = a_job("running", -50, total_samples=None, attained_slot_seconds=attained)
    running = holding(running, FOUR[0].slots()[0])
    waiting = a_job("waiting", total_samples=None)
    picture = snapshot(nodes(1, kind="h200"), running, waiting)
    plan = decide(AITurbo(), picture)
    assert counts(plan) == {"running": 1, "waiting": 0}
    assert plan.wake_at == pytest.approx(picture.now + 30.0)
    demoted = decide(AITurbo(), later(apply(plan, picture), 30.0))
    assert counts(demoted) == {"running": 0, "waiting": 1}


def test_sizes_are_kept_for_an_interval_and_decided_again_when_somebody_comes() -> None:
    """A job that could grow does not, until the interval is over: the plan in force is repeated, to the word."""
    picture = snapshot(nodes(4, kind="h200"), a_job("a", total_samples=None, scales=True))
    plan = decide(AITurbo(), picture)
    running = apply(plan, picture)
    before = later(running, INTERVAL / 8)
    assert decide(AITurbo(), before).targets == plan.targets
    assert decide(AITurbo(), before).wake_at == plan.wake_at
    joined = decide(AITurbo(), later(running, INTERVAL / 8, a_job("b", total_samples=None)))
    assert "of 2" in joined.targets["a"].reason
    classified = replace(before, jobs=tuple(replace(v, total_samples=10**6, predictable=0.9) for v in before.jobs))
    assert "placed by what it still needs" in decide(AITurbo(), classified).targets["a"].reason


@pytest.mark.parametrize("changed", [{"slot_counts": (1, 2)}, {"types": ("old",)}, {"min_batch": 32, "max_batch": 32}])
def test_within_the_interval_changed_limits_are_kept(changed: dict[str, Any]) -> None:
    """Its user changed them, or its queue has less for it: the target of before would be refused."""
    pool = (*FOUR, *nodes(2, kind="old"))
    picture = snapshot(pool, a_job("a", total_samples=10**6, scales=True))
    plan = decide(AITurbo(), picture)
    assert counts(plan) == {"a": 4}
    soon = later(apply(plan, picture), INTERVAL / 8)
    (running,) = soon.jobs
    other = replace(soon, jobs=(replace(running, limits=replace(running.limits, **changed)),))
    assert violations(decide(AITurbo(), other), other) == ()


def test_a_job_that_nobody_measured_is_tried_before_its_amount_of_work_is_believed() -> None:
    unknown = replace(a_job("unknown", total_samples=10**8), throughput=None, profile=())
    assert counts(decide(AITurbo(), snapshot(nodes(1, kind="h200"), a_job("long", total_samples=10**5), unknown))) == {
        "long": 0,
        "unknown": 1,
    }


def test_one_measured_job_of_a_task_speaks_for_the_others_even_after_it_has_ended() -> None:
    seen = a_job("seen", task="digits")
    plan = decide(AITurbo(), snapshot(FOUR, seen))
    unknown = replace(a_job("unknown", task="digits", total_samples=1600), throughput=None, profile=())
    after = decide(AITurbo(), replace(snapshot(FOUR, unknown), policy_state=plan.state))
    assert "placed by what it still needs" in after.targets["unknown"].reason
    stranger = replace(unknown, task="other")
    assert "cannot be predicted" in decide(AITurbo(), snapshot(FOUR, seen, stranger)).targets["unknown"].reason


def test_what_another_version_left_in_the_state_is_forgotten() -> None:
    picture = snapshot(FOUR, a_job("a"))
    odd_ones: tuple[dict[str, Any], ...] = (
        {"last": 3, "service": [], "kin": 7},
        {"last": {"occasion": 1}, "service": {"a": "x"}, "kin": {"models": {"t": 1}, "points": {}}},
    )
    for odd in odd_ones:
        assert decide(AITurbo(), replace(picture, policy_state=odd)).targets == decide(AITurbo(), picture).targets
