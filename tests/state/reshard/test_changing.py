"""What `benchmarks.reconfigure` counts: processes change layout, and the bytes are those that came through sockets."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from benchmarks.common.changing import Change, Moves, carry_out, load_of_links
from elastic_core.domain import Slot
from elastic_core.state.layout.layout import DATA, TENSOR, Mesh, Placement, Split, StateLayout, TensorMeta
from elastic_core.state.reshard.change_plan import holdings, plan_change
from elastic_core.state.reshard.pieces import Link
from elastic_core.state.reshard.tenplex_central import tenplex_central_plans

METAS = {"model/a": TensorMeta("float32", (256, 64)), "model/b": TensorMeta("float32", (64,))}
STATE = {
    name: torch.arange(float(256 * 64))[: 256 * 64 if len(m.shape) > 1 else 64].view(m.shape)
    for name, m in METAS.items()
}
SLOTS = tuple(Slot(f"host-{i // 2}", i % 2, "cpu") for i in range(4))


def laid(data: int, tensor: int) -> StateLayout:
    placements = {"model/a": Placement((Split(TENSOR, 0),)), "model/b": Placement()}
    return StateLayout(Mesh((DATA, TENSOR), (data, tensor)), placements, SLOTS[: data * tensor])


def between_hosts(phases: Sequence[Moves]) -> int:
    return sum(size for moves in phases for (a, b), size in moves.items() if a.node != b.node)


@pytest.mark.parametrize("way", ["ours", "central"])
def test_bytes_counted_at_the_sockets_are_those_of_the_plan(way: str) -> None:
    old = laid(1, 2)
    plan = plan_change(METAS, holdings(old, METAS), laid(2, 2), candidates=SLOTS)
    central = tenplex_central_plans(METAS, holdings(old, METAS), plan.target, old.slots[0])
    phases = (plan,) if way == "ours" else central
    outcome = carry_out(Change(metas=METAS, state=STATE, old=old, target=plan.target, phases=phases))
    planned = sum(one.num_bytes[Link.NETWORK] for one in phases)
    assert planned > 0
    assert planned <= between_hosts(outcome.moves) <= planned + 20_000  # greetings and heads
    assert outcome.seconds > 0


def test_a_link_carries_what_it_sends_or_takes_in_whichever_is_more() -> None:
    a, b, c = SLOTS[0], SLOTS[1], SLOTS[2]
    loads = load_of_links({(a, b): 5, (b, a): 7, (a, c): 10})
    assert loads == {
        "device host-0/0": 15,
        "device host-0/1": 7,
        "device host-1/0": 10,
        "host host-0": 10,
        "host host-1": 10,
    }
