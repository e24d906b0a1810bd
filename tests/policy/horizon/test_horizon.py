"""Horizon: short work first under load, restarts paid for, no blind start where a task is known."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given, settings

from elastic_core.domain import EndedJob, JobView, Limits, Plan, ProfilePoint, Slot, Snapshot, WorkForecast
from elastic_core.policy.base.knapsack import best_choices
from elastic_core.policy.base.options import Options
from elastic_core.policy.horizon.horizon import MOST_SIZES, Horizon, problem
from elastic_core.policy.horizon.speeds.task_models import COLD_START_SLOTS
from elastic_core.policy.horizon.speeds.type_prior import CrossTaskPrior
from tests.policy.builders import holding, job, limits, measured, nodes, point, snapshot
from tests.policy.strategies import BUSY, snapshots

WIDE = limits((1, 2, 4, 8), batch=(64, 64))
FINE = limits(range(1, 9), batch=(64, 64))


def scaling(step: float = 1.0, kind: str = "cpu") -> tuple[ProfilePoint, ...]:
    """Nearly linear to 8 slots, all on one node."""
    return tuple(point(k, 64, step / k**0.9, sync=0.01, kind=kind) for k in (1, 2, 4, 8))


def flat() -> tuple[ProfilePoint, ...]:
    """More slots bring nothing."""
    return tuple(point(k, 64, 1.0, sync=0.6 if k > 1 else 0.0) for k in (1, 2, 4, 8))


def known(name: str, arrived: float = 0.0, work: int = 64_000, lim: Limits = WIDE, **more: object) -> JobView:
    return measured(job(name, arrived, lim, total_samples=work, task=name, **more), *scaling())


def decide(picture: Snapshot) -> Plan:
    return Horizon().decide(picture, Random(0))


def slots_of(plan: Plan) -> dict[str, int]:
    return {name: target.num_slots for name, target in plan.targets.items()}


def test_alone_a_job_that_scales_takes_the_pool() -> None:
    assert slots_of(decide(snapshot(nodes(8), known("a")))) == {"a": 8}


def test_a_job_that_does_not_scale_leaves_the_slots_to_others() -> None:
    stiff = measured(job("stiff", lim=WIDE, task="stiff"), *flat())
    assert slots_of(decide(snapshot(nodes(8, 1), stiff, known("a")))) == {"stiff": 1, "a": 8}


def test_under_load_the_shorter_job_gets_more() -> None:
    long, short = known("long", work=6_400_000, lim=FINE), known("short", 1.0, work=640_000, lim=FINE)
    found = slots_of(decide(snapshot(nodes(8), long, short)))
    assert found["short"] > found["long"]


def test_without_load_the_longer_job_is_not_held_back() -> None:
    found = slots_of(decide(snapshot(nodes(8, 8), known("long", work=640_000), known("short", 1.0, work=6_400))))
    assert found == {"long": 8, "short": 8}


def test_the_first_job_of_a_task_starts_small_and_the_next_one_where_the_first_has_been() -> None:
    first = decide(snapshot(nodes(8, 8), job("a", lim=WIDE, task="t")))
    assert slots_of(first) == {"a": COLD_START_SLOTS}
    there = measured(job("a", lim=WIDE, task="t"), *scaling())
    second = decide(snapshot(nodes(8, 8), there, job("b", 1.0, WIDE, task="t"), state=first.state))
    assert slots_of(second)["b"] == 8


def test_growth_goes_at_most_to_twice_what_the_task_was_measured_on() -> None:
    seen = measured(job("a", lim=WIDE, task="t"), point(1, 64, 1.0), point(2, 64, 0.52, sync=0.01))
    assert slots_of(decide(snapshot(nodes(8), seen))) == {"a": 4}


def test_a_restart_that_does_not_pay_off_is_not_made() -> None:
    held = tuple(Slot("cpu-0", i, "cpu") for i in range(4))
    nearly_done = holding(known("a", done_samples=63_000, resize_seconds=120.0), *held, batch=64)
    just_begun = holding(known("a", work=10**7, resize_seconds=120.0), *held, batch=64)
    assert slots_of(decide(snapshot(nodes(8), nearly_done))) == {"a": 4}
    assert slots_of(decide(snapshot(nodes(8), just_begun))) == {"a": 8}


def test_a_count_that_a_job_holds_is_a_choice_although_no_other_would_consider_it() -> None:
    """Another policy gave it five slots, or a job that lists them has left: what a resize costs counts all the same."""
    lim = limits(range(1, 17), batch=(64, 64))
    held = tuple(Slot("cpu-0", i, "cpu") for i in range(5))
    nearly_done = holding(known("a", lim=lim, done_samples=63_000, resize_seconds=120.0), *held, batch=64)
    assert slots_of(decide(snapshot(nodes(16), nearly_done))) == {"a": 5}
    no_more = replace(nearly_done, limits=replace(lim, slot_counts=tuple(n for n in lim.slot_counts if n != 5)))
    assert slots_of(decide(snapshot(nodes(16), no_more)))["a"] != 5


def test_who_moves_goes_to_as_few_nodes_as_possible_and_who_stays_keeps_its_own() -> None:
    stays = holding(known("stays", work=10**7), *(Slot("cpu-1", i, "cpu") for i in range(8)), batch=64)
    plan = decide(snapshot(nodes(8, 8), stays, known("new", 1.0)))
    assert plan.targets["stays"].nodes is None
    assert plan.targets["new"].nodes == {"cpu-0": 8}


def test_the_faster_type_goes_where_it_takes_off_most() -> None:
    fast = [*scaling(), *scaling(0.2, kind="gpu")]
    alike = [*scaling(), *scaling(0.95, kind="gpu")]
    pool = (*nodes(8), *nodes(8, kind="gpu"))
    picky = measured(job("picky", lim=WIDE, task="picky"), *fast)
    easy = measured(job("easy", 1.0, WIDE, task="easy"), *alike)
    plan = decide(snapshot(pool, picky, easy))
    assert plan.targets["picky"].counts == {"gpu": 8}
    assert plan.targets["easy"].counts == {"cpu": 8}


def test_a_type_that_a_task_never_tried_is_as_fast_as_other_tasks_found_it() -> None:
    """A long job that is alone goes where the others were five times as fast, though it was never there."""
    both = measured(job("a", lim=WIDE, task="a", total_samples=640), *scaling(), *scaling(0.2, kind="gpu"))
    pool = (*nodes(8), *nodes(8, kind="gpu"))
    first = decide(snapshot(pool, both))
    held = tuple(Slot("cpu-0", i, "cpu") for i in range(8))
    stays = holding(known("b", work=10**7, resize_seconds=60.0), *held, batch=64)
    assert decide(snapshot(pool, stays)).targets["b"].counts == {"cpu": 8}
    assert decide(snapshot(pool, stays, state=first.state)).targets["b"].counts == {"gpu": 8}


def test_work_that_nobody_declared_is_estimated_from_the_tasks_finished_jobs() -> None:
    """The same two jobs; only what earlier jobs of their tasks turned out to be tells them apart."""
    state: dict[str, object] = {}
    for work, task in ((10**8, "big"), (10**6, "small")):
        gone = replace(known(f"{task}-0", work=work, lim=FINE), task=task, total_samples=None, done_samples=work)
        state = dict(decide(snapshot(nodes(8), gone, state=state)).state)
    twins = [
        replace(known(f"{task}-1", at, lim=FINE), task=task, total_samples=None)
        for at, task in enumerate(("big", "small"))
    ]
    found = slots_of(decide(snapshot(nodes(8), *twins, state=state)))
    assert found["small-1"] > found["big-1"]


def test_declared_work_of_finished_jobs_tells_what_undeclared_ones_need() -> None:
    """Also where each was seen last as it began."""
    state: dict[str, object] = {}
    for number in range(3):
        gone = known(f"gone-{number}", work=10**6, lim=FINE)
        state = dict(decide(snapshot(nodes(8), replace(gone, task="t"), state=state)).state)
    asked = replace(known("asked", lim=FINE), task="t", total_samples=None)
    plan = decide(snapshot(nodes(8), asked, state=state))
    assert plan.state["tasks"]["t"]["works"] == [10.0**6] * 3
    assert "expected from 3 finished jobs of its task" in plan.targets["asked"].reason


def test_jobs_that_were_cut_off_lead_to_expect_more_work_and_are_named_in_the_reason() -> None:
    """Through the stored state: one that finished, and three that had outlived it when they were cancelled."""
    jobs = [replace(known(f"gone-{n}", n, lim=FINE), task="t", total_samples=None) for n in range(4)]
    ends = [EndedJob(job_id=view.job_id, work=10**8 if n else 10**6, completed=not n) for n, view in enumerate(jobs)]
    state = decide(snapshot(nodes(8), *jobs)).state
    asked = {task: replace(known("asked", lim=FINE), task=task, total_samples=None) for task in "tu"}
    told = replace(snapshot(nodes(8), asked["t"], state=json.loads(json.dumps(state))), ended=tuple(ends))
    plan = decide(told)
    assert "expected from 1 finished job and 3 that were cut off of its task" in plan.targets["asked"].reason
    only_finished = problem(replace(told, ended=tuple(ends[:1]), not_finished=tuple(view.job_id for view in jobs[1:])))
    with_all = problem(told)
    assert only_finished is not None
    assert with_all is not None
    assert with_all.left.mean[0] > 10 * only_finished.left.mean[0]
    state = json.loads(json.dumps(plan.state))
    of_another = decide(snapshot(nodes(8), asked["u"], state=state)).targets["asked"].reason
    assert "expected from 1 finished job and 3 that were cut off of other tasks" in of_another


def test_sizes_that_were_kept_without_their_tasks_are_read_as_of_tasks_of_their_own() -> None:
    asked = replace(known("asked", lim=FINE), total_samples=None)
    plan = decide(snapshot(nodes(8), asked, state={"sizes": [10.0, 3000.0]}))
    assert plan.state["sizes"] == [("unknown 0", 10.0), ("unknown 1", 3000.0)]
    assert "expected from 2 finished jobs of other tasks" in plan.targets["asked"].reason
    again = decide(snapshot(nodes(8), asked, state=json.loads(json.dumps(plan.state))))
    assert again.state["sizes"] == plan.state["sizes"]


def test_jobs_that_are_cut_off_push_no_finished_one_out_of_what_is_remembered() -> None:
    """Of each kind the latest; those cut off that ended before the first finished one that is left go with it."""
    asked = replace(known("asked", lim=FINE), total_samples=None)
    finished, cut_off = [["t", 10.0], ["t", 3000.0]], [["t", float(n), False] for n in range(MOST_SIZES + 9)]
    plan = decide(snapshot(nodes(8), asked, state={"sizes": [*finished, *cut_off]}))
    assert json.loads(json.dumps(plan.state["sizes"])) == [*finished, *cut_off[-MOST_SIZES:]]
    assert f"2 finished jobs and {MOST_SIZES} that were cut off of other tasks" in plan.targets["asked"].reason
    many = [["t", float(n)] for n in range(MOST_SIZES + 1)]
    plan = decide(snapshot(nodes(8), asked, state={"sizes": [cut_off[0], many[0], cut_off[1], *many[1:]]}))
    assert json.loads(json.dumps(plan.state["sizes"])) == [cut_off[1], *many[1:]]


def test_the_class_of_a_job_and_its_forecast_change_the_plan() -> None:
    """Beside two jobs of declared work, on slots for which they compete: one plan for each class, one for each
    forecast; the reason names both."""
    rivals = [known(f"rival-{i}", work=work, lim=FINE) for i, work in enumerate((400_000, 2_560_000))]

    def plan(predictable: float | None, median: float) -> Plan:
        told = WorkForecast(
            probabilities=(0.1, 0.5, 0.9), totals=(0.9 * median, median, 1.1 * median), source="loss curve"
        )
        asked = known("asked", lim=FINE, predictable=predictable, work_forecast=told, done_samples=64_000)
        return decide(snapshot(nodes(8), *rivals, replace(asked, total_samples=None)))

    classes = [plan(predictable, 5_000_000.0) for predictable in (None, 0.01, 0.99)]
    forecasts = [plan(0.99, median) for median in (100_000.0, 1_000_000.0, 10_000_000.0)]
    for plans in (classes, forecasts):
        assert len({tuple(sorted(slots_of(one).items())) for one in plans}) == 3
    assert "its end cannot be predicted: taken by what it has run" in classes[1].targets["asked"].reason
    assert "forecast from its loss curve (predictable with 0.99)" in classes[2].targets["asked"].reason


def test_every_target_says_how_many_jobs_need_longer() -> None:
    plan = decide(snapshot(nodes(8), known("a")))
    assert plan.targets["a"].reason == "8 of cpu at batch 64: no job needs longer"


def test_options_are_powers_of_two_inside_a_node_then_whole_nodes_and_what_jobs_list() -> None:
    options = Options.of({"gpu": [4, 4, 4]}, listed=[3, 6])
    assert list(zip(options.counts.tolist(), options.num_nodes.tolist(), strict=True)) == [
        (1, 1), (2, 1), (3, 1), (4, 1), (6, 2), (8, 2), (12, 3),
    ]  # fmt: skip


def test_a_count_that_is_held_of_a_type_is_a_choice_on_that_type_alone() -> None:
    """Nobody is to be moved to another type by a count that fills its nodes badly."""
    options = Options.of({"cpu": [8], "gpu": [8]}, listed=[], held={"gpu": {5}})
    of_gpu = options.kind_index == options.kinds.index("gpu")
    assert options.counts[of_gpu].tolist() == [1, 2, 4, 5, 8]
    assert options.counts[~of_gpu].tolist() == [1, 2, 4, 8]


def test_on_many_nodes_not_every_number_of_them_is_a_choice_but_all_of_them_are() -> None:
    options = Options.of({"gpu": [8] * 500}, listed=[])
    counts = options.counts.tolist()
    assert set(range(8, 129, 8)) < set(counts)
    assert counts[-1] == 4000
    assert len(counts) < 45
    nodes_of = np.asarray(counts[counts.index(128) :]) / 8
    assert (nodes_of[1:] / nodes_of[:-1]).max() < 1.26


def test_a_count_that_no_job_may_have_is_no_choice() -> None:
    assert Options.of({"gpu": [8, 8]}, listed=[], allowed={2, 8, 32}).counts.tolist() == [2, 8]
    plan = decide(snapshot(nodes(4), job("a", lim=limits((8,)))))
    assert slots_of(plan) == {"a": 0}


def test_a_type_on_which_no_job_may_have_any_number_of_slots_is_left_alone() -> None:
    pool = (*nodes(8), *nodes(3, kind="gpu"))
    assert slots_of(decide(snapshot(pool, known("a", lim=limits((8,), batch=(64, 64)))))) == {"a": 8}


def test_what_is_known_of_types_is_learnt_anew_only_once_there_is_half_as_much_again() -> None:
    both = [*scaling(), *scaling(0.2, kind="gpu")]
    pool = (*nodes(8), *nodes(8, kind="gpu"))
    first = measured(job("a", lim=WIDE, task="a"), *both)
    state = decide(snapshot(pool, first)).state
    assert decide(snapshot(pool, replace(first), state=state)).state["types"] == state["types"]
    one_more = measured(first, point(3, 64, 0.4, sync=0.01))
    assert decide(snapshot(pool, one_more, state=state)).state["types"] == state["types"]
    second = measured(job("b", 1.0, WIDE, task="b"), *scaling(), *scaling(0.7, kind="gpu"))
    again = decide(snapshot(pool, first, second, state=state)).state["types"]
    assert again != state["types"]
    assert CrossTaskPrior.of(json.loads(json.dumps(again))).to_json() == again


@settings(BUSY, max_examples=15)
@given(picture=snapshots())
def test_where_nobody_claims_anything_the_objective_alone_decides(picture: Snapshot) -> None:
    plain = tuple(replace(view, priority=3, deadline=None) for view in picture.jobs)
    bare = replace(picture, jobs=plain)
    shared = problem(bare)
    if shared is None:
        return
    options = shared.options
    chosen = best_choices(shared.values, options.use, options.capacity)
    plan = decide(bare)
    for row, view in enumerate(plain):
        found = int(chosen[row])
        wanted = {} if found < 0 else {options.kinds[options.kind_index[found]]: int(options.counts[found])}
        assert plan.targets[view.job_id].counts == wanted


def over_two_nodes(comm: str, step: float, count: int) -> ProfilePoint:
    return replace(point(2, 64, step, sync=step - 0.5, num_nodes=2), comm=comm, count=count)


def test_a_cheaper_exchange_gets_a_job_the_second_node_that_the_exact_sum_would_not_pay() -> None:
    alone, slow = point(1, 64, 1.0), over_two_nodes("allreduce", 1.6, 64)
    pool = nodes(1, 1)
    exact = measured(job("exact", lim=limits((1, 2), (64, 64)), task="t"), alone, slow)
    after = decide(snapshot(pool, exact))
    assert slots_of(after) == {"exact": 1}
    wide = limits((1, 2), (64, 64), comm="auto")
    new = job("auto", 1.0, wide, task="t", total_samples=10**7)
    assert slots_of(decide(snapshot(pool, new, state=after.state))) == {"auto": 2}, "it has yet to find out"
    both = (Slot("cpu-0", 0, "cpu"), Slot("cpu-1", 0, "cpu"))
    trying = holding(measured(new, over_two_nodes("allreduce", 1.6, 4)), *both, batch=64)
    still = decide(snapshot(pool, trying, state=after.state))
    assert slots_of(still) == {"auto": 2}, "a trial says nothing yet"
    kept = holding(measured(trying, over_two_nodes("powersgd", 0.6, 16)), *both, batch=64)
    later = decide(snapshot(pool, kept, now=1e4, state=still.state))
    assert slots_of(later) == {"auto": 2}
    worse = holding(measured(new, over_two_nodes("allreduce", 1.6, 16)), *both, batch=64)
    assert slots_of(decide(snapshot(pool, worse, now=1e4, state=still.state))) == {"auto": 1}, "nothing else was better"
