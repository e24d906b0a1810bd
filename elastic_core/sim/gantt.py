"""Who held which slot when, as SVG text: one row a slot, grouped by node, coloured by task.

A result knows how many slots of a node a job held, not which; rows are dealt out so that a job that stays keeps its
rows where it can. Stretches too short to be seen are left out, and the caption says how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from elastic_core.domain import Node
from elastic_core.sim.plots import Axis, grid, short
from elastic_core.sim.result import Held, Result

WIDTH = 1320
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 10, 4, 24
MAX_ROWS, MAX_BLOCKS = 256, 5000
_LEAST_PIXELS = 0.35


@dataclass(frozen=True, slots=True)
class Block:
    """`rows` neighbouring slots of one node, from `row` on."""

    held: Held
    node: str
    row: int
    rows: int


def blocks(held: Sequence[Held], nodes: Sequence[Node]) -> list[Block]:
    """Every stretch on rows of its own: no two blocks of a node overlap in time."""
    free_from = {node.name: [float("-inf")] * node.num_slots for node in nodes}
    last_rows: dict[tuple[str, str], list[int]] = {}
    found = []
    for stretch in sorted(held, key=lambda h: (h.start, h.end)):
        for node, count in stretch.nodes.items():
            if node not in free_from:
                continue
            until = free_from[node]
            free = [row for row, end in enumerate(until) if end <= stretch.start + 1e-6]
            rows = _chosen(free, count, last_rows.get((stretch.job_id, node), []))
            last_rows[stretch.job_id, node] = rows
            for row in rows:
                until[row] = stretch.end
            found += [Block(stretch, node, first, number) for first, number in _runs(rows)]
    return found


def _chosen(free: Sequence[int], count: int, before: Sequence[int]) -> list[int]:
    """Its own rows first, then the shortest run of neighbours that takes the rest."""
    kept = [row for row in before if row in free][:count]
    missing = count - len(kept)
    left = [row for row in free if row not in kept]
    fitting = [run for run in _runs(left) if run[1] >= missing]
    if missing and fitting:
        first, _ = min(fitting, key=lambda run: (run[1], run[0]))
        left = list(range(first, first + missing))
    return sorted([*kept, *left[:missing]])


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """(first, number) of each stretch of neighbours."""
    found: list[tuple[int, int]] = []
    for row in sorted(rows):
        if found and found[-1][0] + found[-1][1] == row:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((row, 1))
    return found


def gantt(
    result: Result, nodes: Sequence[Node], tasks: Mapping[str, str], css: Mapping[str, str], start: float, time: Axis
) -> tuple[str, str]:
    """(SVG, what is left out). `tasks` of jobs, `css` class of tasks; `start` is the zero of the time axis."""
    shown, rows = [], 0
    for node in nodes:
        if rows + node.num_slots > MAX_ROWS:
            break
        shown.append(node)
        rows += node.num_slots
    height = max(3.0, min(13.0, 700.0 / max(rows, 1)))
    gap = 0.7 if height >= 5 else 0.0
    tops, y = {}, float(_TOP)
    for node in shown:
        tops[node.name] = y
        y += node.num_slots * height + 5
    bottom = y
    parts = [f'<svg viewBox="0 0 {WIDTH} {bottom + _BOTTOM:.0f}" role="img" aria-label="Slots under {result.policy}">']
    for node in shown:
        top, tall = tops[node.name], node.num_slots * height
        parts.append(
            f'<rect class="idle" x="{_LEFT}" y="{top:.1f}" width="{WIDTH - _LEFT - _RIGHT}" height="{tall:.1f}"/>'
            f'<text class="node" x="{_LEFT - 8}" y="{top + tall / 2 + 4:.1f}" text-anchor="end">'
            f"{escape(node.name)}</text>"
        )
    parts += grid(time, None, _LEFT, WIDTH - _RIGHT, _TOP, bottom)
    drawn, short_ones = 0, 0
    everything = sorted(blocks(result.held, shown), key=lambda block: block.held.start - block.held.end)
    for block in everything:
        left = time.at(block.held.start - start, _LEFT, WIDTH - _RIGHT)
        width = time.at(block.held.end - start, _LEFT, WIDTH - _RIGHT) - left
        if width < _LEAST_PIXELS or drawn >= MAX_BLOCKS:
            short_ones += 1
            continue
        drawn += 1
        top = tops[block.node] + block.row * height
        parts.append(
            f'<rect class="{css[tasks[block.held.job_id]]}" x="{left:.1f}" y="{top:.1f}" '
            f'width="{max(width - 0.4, 0.3):.1f}" height="{block.rows * height - gap:.1f}"><title>'
            f"{escape(_describe(block.held, tasks[block.held.job_id], start))}</title></rect>"
        )
    return "".join([*parts, "</svg>"]), _left_out(nodes, rows, short_ones)


def _describe(held: Held, task: str, start: float) -> str:
    slots = sum(held.nodes.values())
    return (
        f"{held.job_id} ({task}): {slots} {held.kind} on {', '.join(held.nodes)}, batch {held.batch}, "
        f"{short(round(held.start - start))} to {short(round(held.end - start))}"
    )


def _left_out(nodes: Sequence[Node], rows: int, short_ones: int) -> str:
    total = sum(node.num_slots for node in nodes)
    parts = []
    if rows < total:
        parts.append(f"the first {rows} of {total} slots")
    if short_ones:
        parts.append(f"without {short_ones:,} stretches too short to be seen")
    return ", ".join(parts)
