"""A graph of layers, cut into chains where it forks or joins.

Along a chain every layer has one successor, which has one predecessor. Stages lie inside chains: a layer behind a fork
or a join begins a stage of its own even on the type of the layer before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastic_core.errors import UserError


def chains_of(names: Sequence[str], edges: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """All layers, by index, each in one chain; chains and what is in them in the direction of the edges. Raises
    `UserError` for an edge of no layer, one given twice, and a circle, which it names."""
    after: list[list[int]] = [[] for _ in names]
    before: list[list[int]] = [[] for _ in names]
    for edge in edges:
        source, target = edge
        if not (0 <= source < len(names) and 0 <= target < len(names)):
            raise UserError(f"the edge {edge} names a layer that is not there: layers are 0 to {len(names) - 1}")
        if target in after[source]:
            raise UserError(f"the edge from {names[source]!r} to {names[target]!r} is given twice; give it once")
        after[source].append(target)
        before[target].append(source)
    order = _topological(names, after, before)
    starts = [i for i in order if len(before[i]) != 1 or len(after[before[i][0]]) != 1]
    chains = []
    for start in starts:
        chain = [start]
        while len(after[chain[-1]]) == 1 and len(before[after[chain[-1]][0]]) == 1:
            chain.append(after[chain[-1]][0])
        chains.append(tuple(chain))
    return tuple(chains)


def _topological(names: Sequence[str], after: list[list[int]], before: list[list[int]]) -> list[int]:
    waiting = [len(sources) for sources in before]
    order = [index for index, count in enumerate(waiting) if count == 0]
    for index in order:  # grows while it is gone through
        for target in after[index]:
            waiting[target] -= 1
            if waiting[target] == 0:
                order.append(target)
    if len(order) < len(names):
        circle = " -> ".join(names[index] for index in _circle(before, set(range(len(names))) - set(order)))
        raise UserError(
            f"the layers go round in a circle: {circle}; data must flow one way: take out one of these edges"
        )
    return order


def _circle(before: list[list[int]], left: set[int]) -> list[int]:
    """Every layer that is left has a predecessor that is: going back comes round."""
    seen = [min(left)]
    while True:
        previous = next(source for source in before[seen[-1]] if source in left)
        if previous in seen:
            return [previous, *reversed(seen[seen.index(previous) :])]
        seen.append(previous)
