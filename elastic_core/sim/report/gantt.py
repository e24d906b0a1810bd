"""Who held which slot when, as SVG text: one row a slot, grouped by node, coloured by task.

A result knows how many slots of a node a job held, not which; rows are dealt out so that a job that stays keeps its
rows where it can. Stretches too short to be seen are left out, and the caption says how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from elastic_core.domain import Node
from elastic_core.sim.engine.result import Held, Result
from elastic_core.sim.report.plots import INKS, Scale, drawing, set_scale, svg_text
from elastic_core.text import span

WIDTH = 1320
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 10, 4, 24
MAX_ROWS, MAX_BLOCKS = 256, 5000
_MIN_PIXELS, _NODE_GAP = 0.35, 5


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
    placed = []
    for stretch in sorted(held, key=lambda h: (h.start, h.end)):
        for node, count in stretch.nodes.items():
            if node not in free_from:
                continue
            until = free_from[node]
            free = [row for row, end in enumerate(until) if end <= stretch.start + 1e-6]
            rows = _choose_rows(free, count, last_rows.get((stretch.job_id, node), []))
            last_rows[stretch.job_id, node] = rows
            for row in rows:
                until[row] = stretch.end
            placed += [Block(stretch, node, first, number) for first, number in _runs(rows)]
    return placed


def _choose_rows(free: Sequence[int], count: int, before: Sequence[int]) -> list[int]:
    """Its own rows first, then the shortest run of neighbours that takes the rest."""
    staying = [row for row in before if row in free][:count]
    missing = count - len(staying)
    others = [row for row in free if row not in staying]
    fitting = [run for run in _runs(others) if run[1] >= missing]
    if missing and fitting:
        first, _ = min(fitting, key=lambda run: (run[1], run[0]))
        others = list(range(first, first + missing))
    return sorted([*staying, *others[:missing]])


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """(first, number) of each stretch of neighbours."""
    runs: list[tuple[int, int]] = []
    for row in sorted(rows):
        if runs and runs[-1][0] + runs[-1][1] == row:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((row, 1))
    return runs


def gantt(
    result: Result, nodes: Sequence[Node], tasks: Mapping[str, str], inks: Mapping[str, str], start: float, time: Scale
) -> tuple[str, str]:
    """(SVG, what is left out). `tasks` of jobs, `inks` of tasks; `start` is the zero of the time scale."""
    shown = _shown(nodes)
    rows = sum(node.num_slots for node in shown)
    row_height = max(3.0, min(13.0, 700.0 / max(rows, 1)))
    tops, bottom = {}, 0.0
    for node in shown:
        tops[node.name] = bottom
        bottom += node.num_slots * row_height + _NODE_GAP
    pixels_a_second = (WIDTH - _LEFT - _RIGHT) / time.high
    placed = blocks(result.held, shown)
    visible = [block for block in placed if (block.held.end - block.held.start) * pixels_a_second >= _MIN_PIXELS]
    visible = sorted(visible, key=lambda block: block.held.start - block.held.end)[:MAX_BLOCKS]
    gap_seconds, gap_rows = 0.4 / pixels_a_second, 0.7 if row_height >= 5 else 0.0
    idle = [(0.0, tops[node.name], time.high, node.num_slots * row_height) for node in shown]
    bars = [
        (
            block.held.start - start,
            tops[block.node] + block.row * row_height,
            max(block.held.end - block.held.start - gap_seconds, 0.75 * gap_seconds),
            block.rows * row_height - gap_rows,
        )
        for block in visible
    ]
    with drawing(WIDTH, bottom + _TOP + _BOTTOM, (_LEFT, _RIGHT, _TOP, _BOTTOM)) as axes:
        set_scale(axes, "x", time)
        axes.set_ylim(max(bottom, 1.0), 0.0)
        axes.set_yticks([top + height / 2 for _, top, _, height in idle], [node.name for node in shown])
        _add_bars(axes, idle, [INKS["idle"]] * len(idle), zorder=0)
        _add_bars(axes, bars, [INKS[inks[tasks[block.held.job_id]]] for block in visible], gid="blocks")
        titles = [_describe(block.held, tasks[block.held.job_id], start) for block in visible]
        drawn = svg_text(axes, f"Slots under {result.policy}", {"blocks": titles})
    return drawn, _left_out(nodes, rows, len(placed) - len(visible))


def _add_bars(axes: Axes, boxes: Sequence[tuple[float, float, float, float]], colours: list[str], **more: Any) -> None:
    """`boxes`: left, top, width, height. One collection: thousands of single patches take matplotlib seconds."""
    corners = [((x, y), (x + width, y), (x + width, y + height), (x, y + height)) for x, y, width, height in boxes]
    bars = PolyCollection(corners, facecolors=colours, edgecolors="none", clip_on=False, **more)
    axes.add_collection(bars, autolim=False)


def _shown(nodes: Sequence[Node]) -> list[Node]:
    """The first nodes, as many as have `MAX_ROWS` slots together."""
    shown: list[Node] = []
    for node in nodes:
        if sum(other.num_slots for other in shown) + node.num_slots > MAX_ROWS:
            break
        shown.append(node)
    return shown


def _describe(held: Held, task: str, start: float) -> str:
    slots = sum(held.nodes.values())
    return (
        f"{held.job_id} ({task}): {slots} {held.kind} on {', '.join(held.nodes)}, batch {held.batch}, "
        f"from {span(held.start - start)} to {span(held.end - start)}"
    )


def _left_out(nodes: Sequence[Node], rows: int, num_short: int) -> str:
    total = sum(node.num_slots for node in nodes)
    parts = []
    if rows < total:
        parts.append(f"the first {rows} of {total} slots")
    if num_short:
        parts.append(f"without {num_short:,} stretches too short to be seen")
    return ", ".join(parts)
