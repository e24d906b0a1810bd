"""Named clusters: those that published results were taken on, and small ones to try things on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic_core.domain import Node
from elastic_core.sim.ground_truth.workload import nodes
from elastic_core.sim.traces.published_traces import SIA_HETEROGENEOUS, SIXTEEN_T4_NODES
from elastic_core.sim.workloads.lookup import look_up


@dataclass(frozen=True, slots=True)
class Preset:
    summary: str
    nodes: tuple[Node, ...]


PRESETS: dict[str, Preset] = {
    "small-mixed": Preset("16 t4 on 4 nodes and 8 a100 on one", (*nodes("t4", 4, 4), *nodes("a100", 1, 8))),
    "sia-heterogeneous": Preset("Sia's 64: 24 t4 (6 x 4), 24 rtx (3 x 8), 16 a100 (2 x 8)", SIA_HETEROGENEOUS),
    **{
        f"sia-heterogeneous-{times}x": Preset(
            f"{times} times as many nodes of each, for sia-scale-{times}x",
            (*nodes("t4", 6 * times, 4), *nodes("rtx", 3 * times, 8), *nodes("a100", 2 * times, 8)),
        )
        for times in (2, 8, 32)
    },
    "64-t4": Preset("16 nodes of 4 t4, Pollux's and Sia's homogeneous testbed", SIXTEEN_T4_NODES),
    "gavel-108": Preset(
        "Gavel's simulated cluster: 36 each of v100, p100 and k80, on nodes of 4",
        (*nodes("v100", 9, 4), *nodes("p100", 9, 4), *nodes("k80", 9, 4)),
    ),
    "tiresias-64": Preset("Tiresias's 16 nodes of 4 p100", nodes("p100", 16, 4)),
    "philly-1024": Preset("128 nodes of 8 a100, for the Philly trace", nodes("a100", 128, 8)),
}


def preset(name: str) -> tuple[Node, ...]:
    """Raises `UserError` for a name that no cluster has."""
    return look_up("cluster", name, PRESETS).nodes


def describe(pool: Sequence[Node]) -> str:
    """ "64 slots: 24 t4, 40 a100"."""
    counts: dict[str, int] = {}
    for node in pool:
        counts[node.type] = counts.get(node.type, 0) + node.num_slots
    return f"{sum(counts.values())} slots: {', '.join(f'{count} {kind}' for kind, count in counts.items())}"
