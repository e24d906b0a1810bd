"""The laws of the simulator's core: time, slots and work are never made up, whatever the policy does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import Plan, Snapshot
from elastic_core.errors import UserError
from elastic_core.policy import registry
from elastic_core.predict.speed.fit import job_models
from elastic_core.sim.engine.engine import Options, Pauses, simulate
from elastic_core.sim.engine.result import Held, Result
from elastic_core.sim.ground_truth.physics import gain
from elastic_core.sim.ground_truth.workload import Workload
from tests.policy.builders import nodes
from tests.policy.strategies import BUSY
from tests.sim.builders import QUIET, Restless, Scripted, allowed, of, physics, sim_job, workloads

POOL = (*nodes(2, 3, kind="a"), *nodes(2, kind="b"))
FEW = settings(BUSY, max_examples=60)


def run(workload: Workload, policy: Any, pool: Any = POOL, options: Options = QUIET, **more: Any) -> Result:
    return simulate(workload, pool, policy, options, **{"fit": no_models, **more})


def no_models(points: Any, limits: Any) -> None:
    """Fitting takes most of the time, and these policies ask no model."""


def stretches(result: Result) -> dict[str, list[Held]]:
    found: dict[str, list[Held]] = defaultdict(list)
    for held in sorted(result.held, key=lambda held: held.start):
        found[held.job_id].append(held)
    return found


def slots_at(held: Iterable[Held], instant: float) -> dict[str, int]:
    used: dict[str, int] = defaultdict(int)
    for stretch in held:
        if stretch.start <= instant < stretch.end:
            for node, number in stretch.nodes.items():
                used[node] += number
    return used


# --- schedules computed by hand ---------------------------------------------------------------------------------


def test_two_jobs_by_hand_to_the_second() -> None:
    """Restart 5 s, 10 samples a second and slot; a (1000 samples) at 0 s, b (600 samples) at 30 s, four slots.

    a: alone on 4 slots from 0: trains 5..30 at 40/s = 1000 done exactly at 30 s: both events fall together.
    """
    both = of(sim_job("a"), sim_job("b", at=30.0, truth=physics(work=600.0)))
    result = run(both, Scripted(lambda now: {view.job_id: (4, 40) for view in now.jobs}), nodes(4, kind="a"))
    assert [job.finished_at for job in result.jobs] == [30.0, 30.0 + 5.0 + 15.0]
    assert result.figures()["makespan"] == 50.0
    assert result.figures()["utilisation"] == 1.0


def test_a_resize_by_hand_to_the_second() -> None:
    """a on 4 slots until b comes at 20 s: then 2 slots each until one ends, which gives the other all four.

    a: 5..20 at 40/s = 600; 25..45 at 20/s = 400: ends at 45. b: 25..45 at 20/s = 400 of 600; then 50..55 at 40/s.
    """
    both = of(sim_job("a"), sim_job("b", at=20.0, truth=physics(work=600.0)))
    share = Scripted(lambda now: {view.job_id: (4 // len(now.jobs), 40) for view in now.jobs})
    result = run(both, share, nodes(4, kind="a"))
    assert [(job.started_at, job.finished_at, job.resizes) for job in result.jobs] == [(0.0, 45.0, 1), (20.0, 55.0, 1)]
    assert [sum(job.slot_seconds.values()) for job in result.jobs] == [4 * 20 + 2 * 25, 2 * 25 + 4 * 10]
    assert [(held.job_id, held.start, held.end, sum(held.nodes.values())) for held in result.held] == [
        ("a", 0.0, 20.0, 4), ("a", 20.0, 45.0, 2), ("b", 20.0, 45.0, 2), ("b", 45.0, 55.0, 4),
    ]  # fmt: skip


def test_a_policy_is_asked_at_arrivals_ends_and_its_own_wake_ups_and_at_no_other_time() -> None:
    both = of(sim_job("a"), sim_job("b", at=20.0))
    policy = Scripted(lambda now: {view.job_id: (1, 10) for view in now.jobs}, wake=lambda now: now.now + 50.0)
    run(both, policy, nodes(2, kind="a"))
    assert [picture.now for picture in policy.seen] == [0.0, 20.0, 70.0, 105.0]  # b ends at 125, and nobody is left
    assert [picture.version for picture in policy.seen] == [0, 1, 2, 3]
    assert [picture.policy_state for picture in policy.seen] == [{}, *({"count": n} for n in (1, 2, 3))]


@pytest.mark.parametrize(("tied", "left", "shown"), [(True, "cpu-0", "cpu-0"), (False, "cpu-1", None)])
def test_processes_that_are_tied_to_a_node_shrink_onto_it_though_another_fits_better(
    tied: bool, left: str, shown: str | None
) -> None:
    """As production has it (`tests/control/transitions/test_node_health.py`): of three slots and two it keeps two."""
    limits = allowed((2, 3, 5), (10, 60))
    both = of(sim_job("a", limits=limits), sim_job("b", at=10.0, limits=limits))
    share = Scripted(lambda now: {"a": (2, 20), "b": (3, 30)} if len(now.jobs) > 1 else {now.jobs[0].job_id: (5, 50)})
    result = run(both, share, nodes(3, 2), replace(QUIET, tied=tied))
    first, second = stretches(result)["a"][:2]
    assert (first.nodes, second.nodes) == ({"cpu-0": 3, "cpu-1": 2}, {left: 2})
    views = [view for now in share.seen for view in now.jobs if view.job_id == "a"]
    assert {view.tied_to for view in views if view.allocation is not None} == {shown}
    assert all(view.tied_to is None for view in views if view.allocation is None)


# --- laws over a policy without any sense -----------------------------------------------------------------------


class Remembering(Restless):
    """Restless, and keeps its plans."""

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        self.plans = [*getattr(self, "plans", ()), super().decide(snapshot, rng)]
        return self.plans[-1]


@FEW
@given(workload=workloads(), seed=st.integers(0, 99))
def test_a_plan_is_in_force_once_every_segment_has_had_time_for_two_steps(workload: Workload, seed: int) -> None:
    """One that the plan ends only when it has made a step, and the first of the one that follows."""
    policy = Remembering()
    run(workload, policy, options=Options(seed=seed))
    for picture, plan, later in zip(policy.seen, policy.plans, policy.seen[1:], strict=False):
        batches = [*(view.last_batch or 0 for view in picture.jobs), *(t.global_batch for t in plan.targets.values())]
        if later.now - picture.now <= 2 * longest_step(workload, max(batches, default=0)):
            continue
        for view in later.jobs:
            if view.job_id in plan.targets:
                target, held = plan.targets[view.job_id], view.allocation
                assert (held.counts() if held else {}) == target.wanted
                assert held is None or held.global_batch == target.global_batch


def longest_step(workload: Workload, batch: int) -> float:
    """Seconds, restart included, of any job at up to this batch, wherever it runs."""
    kinds = {(node.type, node.num_slots) for node in POOL}
    return max(
        job.physics.rescale_seconds + job.physics.seconds(kind, placement, batch, 1)[0]
        for job in workload.jobs
        for kind, slots in kinds
        for placement in ((1,), (slots, slots))
    )


def test_a_preference_for_nodes_moves_nobody_who_holds_as_many_slots_already() -> None:
    """As the allocator does: a preference says where a job goes, not that it has to."""

    class OtherNodes(Scripted):
        def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
            plan = super().decide(snapshot, rng)
            node = "a-1" if len(self.seen) > 1 else "a-0"
            return replace(plan, targets={job: replace(t, nodes={node: 1}) for job, t in plan.targets.items()})

    policy = OtherNodes(lambda now: {"a": (1, 10)}, wake=lambda now: now.now + 50.0)
    result = run(of(sim_job("a")), policy, nodes(2, 2, kind="a"))
    assert [(job.finished_at, job.resizes) for job in result.jobs] == [(105.0, 0)]
    assert [dict(held.nodes) for held in result.held] == [{"a-0": 1}]


@FEW
@given(workload=workloads(), seed=st.integers(0, 99))
def test_no_slot_is_held_twice_at_any_time(workload: Workload, seed: int) -> None:
    policy = Restless()
    result = run(workload, policy, options=Options(seed=seed))
    for picture in policy.seen:
        held = [slot for view in picture.jobs if view.allocation for slot in view.allocation.slots]
        assert len(held) == len(set(held))
        assert set(held) <= set(picture.slots())
    size = {node.name: node.num_slots for node in POOL}
    for instant in {held.start for held in result.held}:
        assert all(number <= size[node] for node, number in slots_at(result.held, instant).items())


@FEW
@given(workload=workloads())
def test_work_is_the_sum_of_rate_times_time(workload: Workload) -> None:
    """Recomputed from who held what, with the restart taken off wherever the slots are not those before."""
    result = run(workload, Restless())
    truth = {job.job_id: job.physics for job in workload.jobs}
    for job_id, held in stretches(result).items():
        done, ready = 0.0, 0.0
        for before, now in pairwise([None, *held]):
            assert now is not None
            if before is None or before.end != now.start or (before.kind, before.nodes) != (now.kind, now.nodes):
                ready = now.start + truth[job_id].rescale_seconds
            rate = truth[job_id].base_batch * gain(truth[job_id], now.batch, 0) / step_seconds(truth[job_id], now)
            done += rate * max(0.0, now.end - max(now.start, ready))
        assert done == pytest.approx(truth[job_id].epoch_ends[-1])


def step_seconds(truth: Any, held: Held) -> float:
    placement = tuple(held.nodes.values())
    share = held.batch // sum(placement)
    accumulation = -(-share // truth.local_limit)
    return float(truth.seconds(held.kind, placement, share // accumulation, accumulation)[0])


@FEW
@given(workload=workloads())
def test_a_restart_is_counted_wherever_slots_change_and_nowhere_else(workload: Workload) -> None:
    result = run(workload, Restless())
    held = stretches(result)
    for job in result.jobs:
        changes = sum(
            before.end != now.start or (before.kind, before.nodes) != (now.kind, now.nodes)
            for before, now in pairwise(held[job.job_id])
        )
        assert job.resizes == changes
        assert job.started_at == held[job.job_id][0].start
        assert job.finished_at == held[job.job_id][-1].end
        by_type: dict[str, float] = defaultdict(float)
        for stretch in held[job.job_id]:
            by_type[stretch.kind] += (stretch.end - stretch.start) * sum(stretch.nodes.values())
        assert dict(job.slot_seconds) == pytest.approx(dict(by_type))


@FEW
@given(workload=workloads(), seed=st.integers(0, 99))
def test_the_same_seed_gives_the_same_result(workload: Workload, seed: int) -> None:
    options = Options(seed=seed, noise=0.3)
    first, second = (run(workload, Restless(), options=options) for _ in range(2))
    assert replace(first, decision_seconds=()) == replace(second, decision_seconds=())


@FEW
@given(workload=workloads())
def test_every_decision_has_a_cause_and_no_two_have_the_same(workload: Workload) -> None:
    policy = Restless()
    result = run(workload, policy)
    instants = [picture.now for picture in policy.seen]
    assert all(earlier < later for earlier, later in pairwise(instants))
    causes = [*(job.submitted_at for job in result.jobs), *policy.wakes, *(job.finished_at or 0 for job in result.jobs)]
    assert all(any(instant == pytest.approx(cause, abs=1e-6) for cause in causes) for instant in instants)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", registry.names())
@settings(BUSY, max_examples=5)
@given(workload=workloads())
def test_every_policy_of_the_registry_brings_a_workload_to_its_end(name: str, workload: Workload) -> None:
    result = run(workload, registry.get(name), fit=job_models)
    assert result.complete
    for job in result.jobs:
        if job.turned_away:
            assert job.finished_at is None
        else:
            assert job.done == pytest.approx(1.0)
            assert job.completion_seconds is not None
            assert job.completion_seconds >= 0


@FEW
@given(workload=workloads(), size=st.sampled_from([17.0, 60.0]))
def test_in_rounds_decisions_fall_on_multiples_of_the_round_only(workload: Workload, size: float) -> None:
    policy = Restless()
    run(workload, policy, options=replace(QUIET, round_seconds=size))
    instants = [picture.now for picture in policy.seen]
    assert all(instant / size == pytest.approx(round(instant / size)) for instant in instants)
    assert all(later - earlier >= size - 1e-6 for earlier, later in pairwise(instants))


def test_noise_is_drawn_by_the_seed_and_reaches_only_what_policies_see() -> None:
    seen = []
    for seed in (1, 1, 2):
        policy = Scripted(lambda now: {view.job_id: (1, 10) for view in now.jobs}, wake=lambda now: now.now + 50.0)
        result = run(of(sim_job("a")), policy, options=Options(seed=seed, noise=0.3))
        assert result.jobs[0].finished_at == 105.0
        seen.append(policy.seen[-1].jobs[0].profile[0].step_seconds)
    assert seen[0] == seen[1] != seen[2]


# --- what a policy is shown --------------------------------------------------------------------------------------


def test_measurements_come_with_a_model_that_the_product_fits() -> None:
    policy = Scripted(lambda now: {view.job_id: (2, 20) for view in now.jobs}, wake=lambda now: now.now + 20.0)
    run(of(sim_job("a")), policy, fit=job_models)
    assert policy.seen[0].jobs[0].throughput is None
    later = policy.seen[1].jobs[0]
    assert later.throughput is not None
    assert later.throughput.num_points == len(later.profile) == 1


def test_work_that_is_not_declared_is_not_shown() -> None:
    policy = Scripted(lambda now: {view.job_id: (2, 20) for view in now.jobs})
    run(of(sim_job("a")), policy, options=replace(QUIET, declared_work=False))
    assert policy.seen[0].jobs[0].total_samples is None


# --- ends before the end ------------------------------------------------------------------------------------------


class Interrupted(Scripted):
    """Ctrl-C while the third decision is made."""

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        if len(self.seen) == 2:
            raise KeyboardInterrupt
        return super().decide(snapshot, rng)


THREE = of(*(sim_job(f"j{i}", at=20.0 * i) for i in range(3)))


def test_an_interrupt_keeps_what_was_computed_and_the_result_says_so() -> None:
    policy = Interrupted(lambda now: {view.job_id: (1, 10) for view in now.jobs})
    result = run(THREE, policy, nodes(3, kind="a"))
    assert not result.complete
    assert [job.job_id for job in result.jobs] == ["j0", "j1", "j2"]
    assert [job.done for job in result.jobs] == [0.35, 0.15, 0.0], "up to 40 s, when the third one came"
    assert [job.started_at for job in result.jobs] == [0.0, 20.0, None]
    assert result.ended_at == 40.0
    assert sum(held.end - held.start for held in result.held) == 60.0


def test_a_time_limit_stops_there_with_what_there_is() -> None:
    policy = Scripted(lambda now: {view.job_id: (1, 10) for view in now.jobs})
    result = run(THREE, policy, nodes(3, kind="a"), replace(QUIET, until=120.0))
    assert not result.complete
    assert result.ended_at == 120.0
    assert [job.finished_at for job in result.jobs] == [105.0, None, None]
    assert [round(job.done, 9) for job in result.jobs] == [1.0, 0.95, 0.75]
    assert (result.completed_by(104.9), result.completed_by(105.0)) == (0, 1)
    assert result.figures()["utilisation"] == pytest.approx((105 + 100 + 80) / (3 * 120)), "of all the time simulated"


def test_who_is_turned_away_leaves_and_never_comes_back() -> None:
    class TurnsAway(Scripted):
        def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
            plan = super().decide(snapshot, rng)
            return replace(plan, turned_away=tuple(view.job_id for view in snapshot.jobs if view.job_id == "j1"))

    policy = TurnsAway(lambda now: {"j0": (1, 10), "j2": (1, 10)})
    result = run(THREE, policy, nodes(2, kind="a"))
    assert result.complete
    assert [(job.turned_away, job.finished_at is None) for job in result.jobs] == [
        (False, False),
        (True, True),
        (False, False),
    ]
    assert [view.job_id for view in policy.seen[2].jobs] == ["j0", "j2"]
    assert result.figures()["turned_away"] == 1


def test_what_ended_since_the_last_decision_is_told_with_its_work_and_whether_that_was_all_of_it() -> None:
    """As in production: who ends at the most that it may take was cut off, and so was who is turned away."""

    class TurnsAway(Scripted):
        def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
            plan = super().decide(snapshot, rng)
            return replace(plan, turned_away=tuple(v.job_id for v in snapshot.jobs if v.job_id == "away"))

    undeclared = {"declared": False, "truth": physics(1000.0)}
    jobs = [sim_job("met", **undeclared, most_samples=5000), sim_job("limit", 1.0, **undeclared, most_samples=1000),
            sim_job("away", 2.0), sim_job("later", 200.0)]  # fmt: skip
    policy = TurnsAway(lambda now: {view.job_id: (1, 10) for view in now.jobs if view.job_id != "away"})
    run(of(*jobs), policy, nodes(3, kind="a"))
    told = {job.job_id: (job.work, job.completed) for snapshot in policy.seen for job in snapshot.ended}
    assert told == {"met": (1000, True), "limit": (1000, False), "away": (0, False)}
    assert sum(len(snapshot.ended) for snapshot in policy.seen) == 3, "each once"


def test_progress_is_told_at_every_event() -> None:
    told: list[tuple[int, int, float]] = []
    policy = Scripted(lambda now: {view.job_id: (1, 10) for view in now.jobs})
    run(THREE, policy, nodes(3, kind="a"), progress=lambda ended, of, now: told.append((ended, of, now)))
    assert told == [(0, 3, 0.0), (0, 3, 20.0), (0, 3, 40.0), (1, 3, 105.0), (2, 3, 125.0), (3, 3, 145.0)]


def test_no_jobs_are_done_at_once() -> None:
    result = run(of(), Restless())
    assert result.complete
    assert result.figures()["completed"] == 0


# --- policies that are wrong --------------------------------------------------------------------------------------


def test_a_plan_over_capacity_is_refused_with_the_time_and_the_reason() -> None:
    with pytest.raises(UserError, match=r"the plan of scripted at 20 s is invalid: 4 slots of type 'a' in all, .* 3"):
        run(THREE, Scripted(lambda now: {view.job_id: (2, 10) for view in now.jobs}), nodes(3, kind="a"))


def test_a_policy_that_lets_everybody_wait_is_told_so() -> None:
    with pytest.raises(UserError, match="scripted leaves 3 jobs waiting for ever at 40 s"):
        run(THREE, Scripted(lambda now: {}))
    patient = Scripted(lambda now: {}, wake=lambda now: now.now + 3600.0)
    with pytest.raises(UserError, match="scripted: no job has ended for 90000 simulated seconds"):
        run(THREE, patient, options=replace(QUIET, max_stall_seconds=86400.0))


def test_who_is_turned_away_and_given_slots_at_once_is_refused() -> None:
    class Muddled(Scripted):
        def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
            return replace(super().decide(snapshot, rng), turned_away=("j0", "x"))

    with pytest.raises(UserError, match="j0: turned away, and has a target of 1 slots; x: turned away, but is not in"):
        run(THREE, Muddled(lambda now: {"j0": (1, 10)}))


def test_starts_at_one_moment_take_longer_by_each_other_and_resizes_in_place_their_own_time() -> None:
    """Two jobs begin at once, each 100 s of work; later one of them grows in place."""
    options = Options(noise=0.0, pauses=Pauses(start=4.0, each_other=3.0, in_place=0.5))
    both = run(of(sim_job("a"), sim_job("b")), Scripted(lambda now: {"a": (1, 10), "b": (1, 10)}), options=options)
    assert [job.finished_at for job in both.jobs] == [104.0, 107.0]

    growing = Scripted(lambda now: {"a": (1, 10) if now.now < 54.0 else (2, 20)}, wake=lambda now: now.now + 54.0)
    alone = run(of(sim_job("a")), growing, options=options)
    assert [job.finished_at for job in alone.jobs] == [54.0 + 0.5 + 25.0]
