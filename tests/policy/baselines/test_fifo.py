"""The queue, in order of arrival."""

from __future__ import annotations

from elastic_core.policy.baselines.fifo import Fifo
from tests.policy.builders import decide, job, limits, nodes, snapshot


def test_the_head_of_the_queue_goes_first_and_the_gap_is_filled() -> None:
    views = [
        job("a", 0, lim=limits((1, 2, 4), requested_slots=2)),
        job("b", 1, lim=limits((1, 2, 4), requested_slots=4)),
        job("c", 2, lim=limits((1, 2, 4), requested_slots=2)),
    ]
    plan = decide(Fifo(), snapshot(nodes(4), *views))
    assert {name: target.num_slots for name, target in plan.targets.items()} == {"a": 2, "b": 0, "c": 2}
    assert plan.targets["c"].reason == "the 2 slots of cpu that it asked for: number 3 of 3 in order of arrival"
