"""A comparison as ONE html file: figures, plots, who held what. No script, no network, nothing beside it.

Colours and surfaces are those of the platform's own page (plugins/elastic_airflow/ui/style.css).
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import isfinite

import numpy as np

from elastic_core.sim.clusters import describe
from elastic_core.sim.gantt import gantt
from elastic_core.sim.plots import (
    Points,
    Series,
    cdf,
    chart,
    count_axis,
    log_axis,
    log_time_axis,
    share_axis,
    time_axis,
)
from elastic_core.sim.report import FIGURES, Comparison, span
from elastic_core.sim.result import Result

_BINS = 240
_COLOURS = 10
_STYLE = """
:root { --page: #f7f7f8; --card: #fff; --line: #e3e3e8; --text: #1c1c21; --soft: #5d5d68; --idle: #f0f0f3;
  --c0: #2f6fbf; --c1: #c2571a; --c2: #21805a; --c3: #8c4bb0; --c4: #b03a5b; --c5: #7a6a14; --c6: #1d7f8c;
  --c7: #5a5fc7; --c8: #9a5b34; --c9: #4f7a28; font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto,
  sans-serif; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1400px; padding: 24px 28px 48px; background: var(--page); color: var(--text); }
h1 { font-size: 21px; font-weight: 650; margin: 0 0 2px; }
h2 { font-size: 13px; font-weight: 600; color: var(--soft); margin: 26px 0 8px; }
h3 { font-size: 14px; font-weight: 600; margin: 0 0 8px; }
p { margin: 0; } .soft { color: var(--soft); font-weight: 400; } .small { font-size: 12.5px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.banner { margin: 12px 0 0; padding: 9px 14px; border-radius: 8px; background: #fbf0d9; color: #8a5a00; }
.policies { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 10px; margin-top: 18px; }
.policies h3 { display: flex; align-items: center; gap: 8px; }
.big { font-size: 26px; font-weight: 650; line-height: 1.15; font-variant-numeric: tabular-nums; }
.dot { width: 10px; height: 10px; border-radius: 3px; flex: none; display: inline-block; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(520px, 1fr)); gap: 10px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; color: var(--soft); font-size: 12.5px; margin: 0 0 6px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
svg { display: block; width: 100%; height: auto; }
.stack { display: grid; gap: 10px; }
.grid line { stroke: var(--line); } .grid text, .node { fill: var(--soft); font-size: 11px; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.mark { stroke: var(--soft); stroke-dasharray: 3 3; }
.idle { fill: var(--idle); } rect:not(.idle):hover { filter: brightness(1.15); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 12px; border-top: 1px solid var(--line); white-space: nowrap; }
tr:first-child th { border-top: 0; } th:first-child, td:first-child { text-align: left; }
td:last-child { text-align: left; white-space: normal; color: var(--soft); font-size: 12.5px; }
thead th { font-weight: 600; } .best { font-weight: 650; color: #17713f; } .scroll { overflow-x: auto; }
ul { margin: 0; padding-left: 18px; color: var(--soft); }
""" + "".join(
    f".p{i}{{stroke:var(--c{i})}}.t{i}{{fill:var(--c{i})}}.b{i}{{background:var(--c{i})}}" for i in range(_COLOURS)
)


def page(found: Comparison) -> str:
    """The whole file."""
    sections = [_head(found), _policies(found), _table(found)]
    if any(result.held for result in found.results):
        sections += [_plots(found), _gantts(found)]
    sections.append(_notes(found))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(found.workload.name)}: {escape(', '.join(r.policy for r in found.results))}</title>"
        f"<style>{_STYLE}</style></head><body>{''.join(sections)}</body></html>\n"
    )


def _head(found: Comparison) -> str:
    jobs = f"{len(found.workload.jobs):,} jobs on {describe(found.nodes)}"
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found.settings.items() if value)
    banner = "" if found.complete else f'<p class="banner">Partial: {escape(found.why_partial())}</p>'
    return (
        f"<header><h1>{escape(found.workload.name)}</h1>"
        f'<p class="soft">{escape(jobs)}{escape("; " + settings if settings else "")}</p>{banner}</header>'
    )


def _policies(found: Comparison) -> str:
    cards, base = [], found.figures[0]["mean_completion"]
    for i, (result, row) in enumerate(zip(found.results, found.figures, strict=True)):
        mean = row["mean_completion"]
        beside = f"{mean / base:.2f} × {found.results[0].policy}" if i and isfinite(mean / base) else "mean completion"
        cards.append(
            f'<div class="card"><h3><i class="dot b{i % _COLOURS}"></i>{escape(result.policy)}</h3>'
            f'<p class="big">{span(mean)}</p><p class="soft small">{escape(beside)}</p>'
            f'<p class="small">p99 {span(row["p99_completion"])}, {row["utilisation"]:.0%} used</p></div>'
        )
    return f'<div class="policies">{"".join(cards)}</div>'


def _table(found: Comparison) -> str:
    head = "".join(f"<th>{escape(result.policy)}</th>" for result in found.results)
    rows = []
    for figure in FIGURES:
        best = found.best(figure)
        cells = "".join(
            f'<td class="best">{figure.show(row[figure.key])}</td>'
            if best is not None and row[figure.key] == best
            else f"<td>{figure.show(row[figure.key])}</td>"
            for row in found.figures
        )
        rows.append(f"<tr><td>{escape(figure.title)}</td>{cells}<td>{escape(figure.meaning)}</td></tr>")
    return (
        f'<h2>Figures</h2><div class="card scroll"><table><thead><tr><th></th>{head}<th></th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _plots(found: Comparison) -> str:
    total, horizon = len(found.workload.jobs), max(r.ended_at for r in found.results) - found.start
    time = time_axis(horizon, "simulated time")
    done = [result.completion_times() for result in found.results]
    fair = [list(rho.values()) for rho in found.fairness]
    queues = [_waiting(result, found.start) for result in found.results]
    used = [_utilisation(result, found.start, horizon) for result in found.results]
    most = max((value for queue in queues for _, value in queue), default=1.0)
    charts = [
        _figure(found, "Share of jobs completed within a time", chart(
            "Completion times", _series(found, [cdf(times, total) for times in done]),
            log_time_axis([t for times in done for t in times], "completion time (log)"), share_axis(""),
        )),
        _figure(found, "Jobs that wait for slots", chart(
            "Queue length", _series(found, queues, steps=True), time, count_axis(most, "")
        )),
        _figure(found, "Slots in use", chart("Utilisation", _series(found, used), time, share_axis(""))),
    ]  # fmt: skip
    if any(fair):
        axis = log_axis([rho for own in fair for rho in own], "rho = completion time / time on a fair share (log)")
        lines = _series(found, [cdf(own, len(own)) for own in fair])
        charts.insert(1, _figure(found, "Finish-time fairness", chart("Fairness", lines, axis, share_axis(""), [1.0])))
    return f'<h2>Over all jobs</h2><div class="plots">{"".join(charts)}</div>'


def _series(found: Comparison, points: Sequence[Points], *, steps: bool = False) -> list[Series]:
    return [
        Series(result.policy, f"p{i % _COLOURS}", own, steps=steps)
        for i, (result, own) in enumerate(zip(found.results, points, strict=True))
    ]


def _figure(found: Comparison, title: str, svg: str) -> str:
    names = "".join(
        f'<span><i class="dot b{i % _COLOURS}"></i>{escape(result.policy)}</span>'
        for i, result in enumerate(found.results)
    )
    return f'<div class="card"><h3>{escape(title)}</h3><div class="legend">{names}</div>{svg}</div>'


def _waiting(result: Result, start: float) -> Points:
    """Jobs without slots after each decision; of many decisions the longest queue in each stretch of time."""
    points = [(at - start, float(waiting)) for at, _, waiting in result.queue]
    if len(points) <= 4 * _BINS:
        return points
    size = len(points) / (4 * _BINS)
    groups = [points[int(i * size) : int((i + 1) * size)] for i in range(4 * _BINS)]
    return [max(group, key=lambda point: point[1]) for group in groups if group]


def _utilisation(result: Result, start: float, horizon: float) -> Points:
    """Share of the cluster's slots that were held, in equal stretches of time."""
    if not result.held:
        return []
    instants = np.asarray([h.start for h in result.held] + [h.end for h in result.held]) - start
    slots = np.asarray([sum(h.nodes.values()) for h in result.held], dtype=np.float64)
    order = np.argsort(instants, kind="stable")
    level = np.cumsum(np.concatenate((slots, -slots))[order])
    at = instants[order]
    area = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(at))))
    edges = np.linspace(0.0, horizon, _BINS + 1)
    means = np.diff(np.interp(edges, at, area)) / np.diff(edges) / sum(result.capacity.values())
    return [
        (float(edge), float(min(mean, 1.0))) for edge, mean in zip((edges[:-1] + edges[1:]) / 2, means, strict=True)
    ]


def _gantts(found: Comparison) -> str:
    tasks = {job.job_id: job.task for job in found.workload.jobs}
    css = {task: f"t{i % _COLOURS}" for i, task in enumerate(sorted(set(tasks.values())))}
    names = "".join(
        f'<span><i class="dot b{name[1:]}"></i>{escape(task or "no task")}</span>' for task, name in css.items()
    )
    time = time_axis(max(result.ended_at for result in found.results) - found.start, "")
    cards = []
    for i, result in enumerate(found.results):
        svg, left_out = gantt(result, found.nodes, tasks, css, found.start, time)
        caption = f' <span class="soft small">{escape(left_out)}</span>' if left_out else ""
        cards.append(
            f'<div class="card"><h3><i class="dot b{i % _COLOURS}"></i> {escape(result.policy)}{caption}</h3>'
            f"{svg}</div>"
        )
    legend = f'<div class="legend">{names}</div>'
    return f'<h2>Who held which slot, by task</h2>{legend}<div class="stack">{"".join(cards)}</div>'


def _notes(found: Comparison) -> str:
    notes = [
        *found.notes,
        f"the window is the first {span(found.window)}",
        "rho: a job's fair share is 1/N of the slots of each type, N the mean number of jobs in the system over its "
        "life; its time there is the best that its limits allow, by the true physics",
    ]
    return f'<h2>Notes</h2><div class="card"><ul>{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul></div>'
