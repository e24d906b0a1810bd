"""Every way in which a plan can be wrong is found, and said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_core.domain import Layout, Plan, Target
from elastic_core.policy.plans.plan_check import violations
from tests.policy.builders import job, limits, nodes, snapshot

PICTURE = snapshot(
    nodes(2, 2) + nodes(2, kind="h200"),
    job("a", lim=limits((1, 2, 4), (2, 64), types=("cpu",))),
    job("b"),
)
GOOD = Target(counts={"cpu": 2}, global_batch=32, layout=Layout(data=2), reason="so")


def check(a: Target = GOOD, b: Target | None = None, **more: Any) -> tuple[str, ...]:
    targets = {"a": a, "b": b or Target.nothing("waits"), **more}
    return violations(Plan(policy="p", targets=targets), PICTURE)


def test_a_valid_plan_has_no_violations() -> None:
    assert check() == ()
    assert check(b=GOOD) == ()
    assert check(b=replace(GOOD, counts={"cpu": 1, "h200": 1})) == ()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (replace(GOOD, counts={"cpu": 3}, layout=Layout(data=3)), "a: 3 slots, allowed are [1, 2, 4]"),
        (replace(GOOD, counts={"h200": 2}), "a: slots of ['h200'], allowed types are ['cpu']"),
        (replace(GOOD, global_batch=65), "a: global batch 65, allowed is 2 to 64"),
        (replace(GOOD, global_batch=1), "a: global batch 1, allowed is 2 to 64"),
        (replace(GOOD, layout=Layout(data=4)), "a: a layout for 4 ranks on 2 slots"),
        (
            replace(GOOD, layout=Layout(tensor=2)),
            "a: the layout data 1 x tensor 2 x pipeline 1, which the job does not admit; admitted: data 2 x tensor 1 x "
            "pipeline 1",
        ),
        (replace(GOOD, counts={"cpu": -1}), "a: negative counts {'cpu': -1}"),
        (
            replace(GOOD, counts={"cpu": 4}, layout=Layout(data=4), global_batch=2),
            "a: global batch 2 on 4 slots: less than one sample a slot",
        ),
    ],
)
def test_a_target_outside_its_jobs_limits(target: Target, said: str) -> None:
    assert said in check(target)


def test_together_over_the_capacity_of_a_type() -> None:
    four = replace(GOOD, counts={"cpu": 4}, layout=Layout(data=4))
    assert check(four, GOOD) == ("6 slots of type 'cpu' in all, the pool has 4",)
    assert "1 slots of type 'tpu' in all, the pool has 0" in check(b=replace(GOOD, counts={"tpu": 1}, layout=Layout()))


def test_slots_of_a_node_that_has_left_do_not_count() -> None:
    away = replace(PICTURE, nodes=tuple(replace(node, present=node.name != "cpu-1") for node in PICTURE.nodes))
    plan = Plan(policy="p", targets={"a": GOOD, "b": GOOD})
    assert violations(plan, away) == ("4 slots of type 'cpu' in all, the pool has 2",)


def test_a_job_without_a_target_and_a_target_without_a_job() -> None:
    plan = Plan(policy="p", targets={"a": GOOD, "c": GOOD})
    assert violations(plan, PICTURE) == (
        "c: has a target, but is not in the snapshot",
        "b: has no target; a job that shall wait needs one without slots",
    )


def test_who_is_turned_away_is_in_the_snapshot_and_gets_nothing() -> None:
    plan = Plan(policy="p", targets={"a": GOOD, "b": Target.nothing("no room")}, turned_away=("a", "b", "c"))
    assert violations(plan, PICTURE) == (
        "a: turned away, and has a target of 2 slots",
        "c: turned away, but is not in the snapshot",
    )
