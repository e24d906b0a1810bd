"""A running job is not moved back to what it just left, nor stopped when it just started, by news of itself alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from elastic_core.domain import JobView, Layout, Node, Slot, Snapshot, Target
from elastic_core.policy.base.knapsack import NOTHING, best_choices
from elastic_core.policy.base.options import Options
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.rules import flapping
from elastic_core.policy.rules.claims import ClaimContext
from elastic_core.policy.rules.division import Division
from elastic_core.policy.rules.flapping import WINDOW
from elastic_core.predict.speed.throughput import Floats
from tests.policy.builders import NOW, apply, decide, holding, job, limits, measured, nodes, point, snapshot
from tests.policy.builders import decide as ask

WIDE = limits((1, 2, 4, 8), batch=(64, 64))


def scales(name: str, arrived: float = 0.0, work: int = 10**7) -> JobView:
    points = [point(k, 64, 1.0 / k**0.9, sync=0.01) for k in (1, 2, 4, 8)]
    return measured(job(name, arrived, WIDE, total_samples=work, task=name, resize_seconds=1.0), *points)


def on(view: JobView, count: int, node: str = "cpu-0") -> JobView:
    return holding(view, *(Slot(node, i, "cpu") for i in range(count)), batch=64)


def left(picture: Snapshot, **configurations: tuple[str, int, float]) -> Snapshot:
    """As if those jobs had left those configurations at those seconds."""
    crowd = flapping.recall(picture).crowd
    gone = {name: [[kind, count, NOW + at]] for name, (kind, count, at) in configurations.items()}
    return replace(picture, policy_state={"moves": {"crowd": crowd, "last": {}, "left": gone}})


def slots(picture: Snapshot, name: str = "a") -> int:
    return ask(Horizon(), picture).targets[name].num_slots


def test_what_a_job_just_left_it_does_not_go_back_to() -> None:
    picture = snapshot(nodes(8), on(scales("a"), 4))
    assert slots(picture) == 8
    assert slots(left(picture, a=("cpu", 8, 40.0))) == 4


def test_after_the_window_it_may() -> None:
    picture = snapshot(nodes(8), on(scales("a"), 4), now=40.0 + WINDOW)
    assert slots(left(picture, a=("cpu", 8, 40.0))) == 8


def test_when_somebody_came_or_a_node_did_it_may() -> None:
    before = left(snapshot(nodes(8), on(scales("a"), 4)), a=("cpu", 8, 40.0))
    more_slots = replace(before, nodes=nodes(8, 1))
    assert slots(more_slots) == 8
    somebody = replace(before, jobs=(*before.jobs, scales("b", 1.0)))
    assert slots(replace(somebody, nodes=nodes(8, 8))) == 8


def test_who_just_started_is_not_stopped_for_better_work() -> None:
    long, short = on(scales("long", work=10**9), 1, "cpu-0"), scales("short", 1.0, work=10**4)
    picture = snapshot(nodes(1), long, short)
    assert slots(picture, "long") == 0
    kept = left(picture, long=("", 0, 40.0))
    assert (slots(kept, "long"), slots(kept, "short")) == (1, 0)
    assert "not stopped right after its start" in decide(Horizon(), kept).targets["long"].reason


def test_whose_slots_were_limited_since_has_what_it_may_have() -> None:
    """Though it just left as many, and just started before that."""
    others = [on(scales(name), 2, f"cpu-{at}") for at, name in enumerate("bc", 1)]
    picture = snapshot(nodes(2, 2, 2), on(scales("a"), 2), *others, scales("d", 1.0))
    crowd, gone = flapping.recall(picture).crowd, [["", 0, NOW + 30.0], ["cpu", 1, NOW + 40.0]]
    limited = replace(picture.jobs[0], limits=limits((1,), batch=(64, 64)))
    state = {"moves": {"crowd": crowd, "last": {}, "left": {"a": gone}}}
    assert slots(replace(picture, jobs=(limited, *picture.jobs[1:]), policy_state=state)) == 1


def test_what_its_limits_do_not_admit_any_more_is_kept_for_nobody() -> None:
    options = Options.of({"cpu": (2, 2)}, [2], {2})
    values, hold_two = np.asarray([[0.0], [2.0]]), np.asarray([0, NOTHING])
    jobs = [replace(scales("a"), limits=limits((1,), batch=(64, 64))), scales("b")]
    case = ClaimContext(jobs, options, NOW, values, np.full((2, 1), 9.0), hold_two, np.ones(2), np.ones((2, 1)))
    division = Division(values, options, np.asarray([NOTHING, 0]))
    flapping.keep_started(case, division, flapping.RecentMoves("crowd", left={"a": [("", 0, NOW)]}), hold_two)
    assert division.chosen.tolist()[0] == NOTHING
    assert case.start_options(division, 0) == []


def test_who_was_stopped_may_start_again_at_once() -> None:
    waiting = left(snapshot(nodes(8), scales("a")), a=("cpu", 8, 40.0))
    assert slots(waiting) == 8


def test_what_is_stored_is_what_targets_left() -> None:
    def target(count: int) -> Target:
        counts = {"cpu": count} if count else {}
        return Target(counts=counts, global_batch=64, layout=Layout(data=count), reason="r")

    picture, state = snapshot(nodes(8), scales("a")), {}
    for at, count in ((100.0, 0), (160.0, 4), (220.0, 4), (280.0, 8)):
        here = replace(picture, now=NOW + at, policy_state={"moves": state})
        state = flapping.recall(here).store({"a": target(count)}, here.now)
    stored: Any = state
    assert stored["last"] == {"a": ["cpu", 8]}
    assert stored["left"] == {"a": [["", 0, NOW + 160.0], ["cpu", 4, NOW + 280.0]]}


def test_of_those_who_just_started_none_is_moved_into_the_way_of_another() -> None:
    one, four = limits((1,), batch=(1, 1)), limits((4,), batch=(1, 4))
    bound = job("a", lim=replace(one, types=("cpu",)), total_samples=1, resize_seconds=0.0)
    wide = job("b", lim=four, priority=1, total_samples=1, resize_seconds=0.0)
    small = [job(name, lim=one, total_samples=1, resize_seconds=0.0) for name in ("c", "d")]
    picture = snapshot((*nodes(1, 3), *nodes(1, kind="h200")), bound, wide, *small)
    first = ask(Horizon(), picture)
    again = ask(Horizon(), apply(first, picture))
    assert first.targets["b"].counts == again.targets["b"].counts == {"cpu": 4}


def test_of_two_plans_worth_the_same_the_one_in_force_stays() -> None:
    """Even of jobs whose resizes are said to cost nothing."""
    pool = (*nodes(1), *nodes(1, kind="h200"))
    a, b = (replace(scales(name), limits=limits((1,), batch=(64, 64)), resize_seconds=0.0) for name in "ab")
    cpu, h200 = Slot("cpu-0", 0, "cpu"), Slot("h200-0", 0, "h200")
    for one, other in ((cpu, h200), (h200, cpu)):
        plan = ask(Horizon(), snapshot(pool, holding(a, one, batch=64), holding(b, other, batch=64)))
        assert {name: list(target.counts) for name, target in plan.targets.items()} == {
            "a": [one.type],
            "b": [other.type],
        }


def test_looking_ahead_who_will_have_started_is_not_stopped_either() -> None:
    """Else a rule counts on slots that the next decision leaves where they are."""
    options = Options.of({"cpu": (1, 1)}, [1], {1})
    jobs = [scales("a"), scales("b")]
    values, hold_one = np.asarray([[1.0], [2.0]]), np.asarray([0, NOTHING])
    case = ClaimContext(jobs, options, NOW, values, np.full((2, 1), 9.0), hold_one, np.ones(2), np.ones((2, 1)))
    for now_held, kept in ((np.asarray([NOTHING, NOTHING]), 0), (hold_one, NOTHING)):
        division = Division(values, options, np.asarray([NOTHING, 0]))  # b, which is worth more
        flapping.keep_started(case, division, flapping.RecentMoves("crowd"), now_held)
        assert division.chosen[0] == kept


@given(
    arrays(np.float64, (3, 4), elements=st.integers(1, 50).map(float)),
    st.sets(st.integers(0, 2), max_size=2),
)
def test_the_choice_is_the_best_in_which_all_run_who_just_started(values: Floats, started: set[int]) -> None:
    """Not what is left when they have claimed their slots back from the best choice of all."""
    options = Options.of({"cpu": (2,), "t4": (1, 1)}, [1, 2], {1, 2})
    case = ClaimContext(
        [scales(name) for name in "abc"],
        options,
        NOW,
        values,
        np.full((3, 4), 9.0),
        np.full(3, NOTHING),
        np.ones(3),
        np.ones((3, 4)),
    )
    raised = flapping.with_started_first(case, sorted(started))
    chosen = best_choices(raised, options.use, options.capacity)
    possible = [
        sum(values[row, option] for row, option in enumerate(options_) if option != NOTHING)
        for options_ in product((NOTHING, 0, 1, 2, 3), repeat=3)
        if all(options_[row] != NOTHING for row in started) and _fits(options_, options)
    ]
    assert sum(values[row, option] for row, option in enumerate(chosen) if option != NOTHING) == max(possible)


def _fits(chosen: tuple[int, ...], options: Options) -> bool:
    used = np.zeros(len(options.kinds))
    for option in chosen:
        if option != NOTHING:
            used[options.kind_index[option]] += options.counts[option]
    return bool((used <= options.capacity).all())


def decided_thrice(picture: Snapshot) -> list[dict[str, dict[str, int]]]:
    """The counts of three decisions in turn, none of which comes into force."""
    counts = []
    for _ in range(3):
        plan = decide(Horizon(), picture)
        counts.append({name: dict(target.counts) for name, target in plan.targets.items()})
        picture = replace(picture, policy_state=plan.state)
    return counts


def test_what_a_job_still_holds_it_has_not_left() -> None:
    """It is to grow from two slots to three; until it has, two slots are nothing that it would go back to."""
    lim = limits((2, 3), (3, 3), requested_slots=2, requested_batch=3, max_local_batch=1)
    first = job("first", -1495.0, lim, total_samples=19_199, resize_seconds=0.0, priority=1, num_resizes=3)
    first = measured(first, point(2, 50, 1.0, 0.02, kind="h200"), point(1, 220, 0.2, 0.01))
    first = holding(first, Slot("cpu-1", 0, "cpu"), Slot("cpu-1", 1, "cpu"), batch=3)
    other = job("other", 0.0, limits((3,), (1, 3)), total_samples=6, resize_seconds=0.0)
    assert decided_thrice(snapshot(nodes(1, 2), first, other)) == [{"first": {"cpu": 3}, "other": {}}] * 3


def test_a_job_whose_node_has_left_holds_nothing_to_weigh() -> None:
    lim = limits((1, 3), (1, 120), types=("cpu",), requested_slots=1, requested_batch=1)
    first = job("first", 0.0, lim, total_samples=32_434, resize_seconds=0.0)
    points = point(2, 233, 0.2, 0.04), point(2, 168, 0.01, 0.002), point(5, 265, 0.01, 0.002, kind="h200")
    first = holding(measured(first, *points), Slot("gone", 0, "cpu"), batch=1)
    other = job("other", 0.0, limits((3,), (1, 12)), total_samples=512, resize_seconds=0.0, priority=-1)
    pool = (Node(name="gone", type="cpu", num_slots=1, present=False), *nodes(2, 1))
    assert decided_thrice(snapshot(pool, first, other)) == [{"first": {"cpu": 3}, "other": {}}] * 3
