"""Line charts as SVG text: axes with round ticks, one step or line a series. No library, no script, no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, inf, isfinite, log10

WIDTH, HEIGHT = 640, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 12, 40
_TIME_STEPS = (
    1,
    5,
    10,
    30,
    60,
    300,
    600,
    1800,
    3600,
    7200,
    14400,
    28800,
    43200,
    86400,
    2 * 86400,
    7 * 86400,
    14 * 86400,
)
_LOG_TIMES = (0.1, 1, 10, 60, 600, 3600, 36000, 360000, 3600000)

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    css: str  # class that colours it
    points: Points
    steps: bool = False  # holds its value until the next point


@dataclass(frozen=True, slots=True)
class Axis:
    """`low` to `high` is drawn; `ticks` are (value, label)."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False
    title: str = ""

    def at(self, value: float, start: float, end: float) -> float:
        low, high = (log10(self.low), log10(self.high)) if self.log else (self.low, self.high)
        own = log10(max(value, self.low)) if self.log else value
        return start + (min(max(own, low), high) - low) / (high - low) * (end - start)


def short(seconds: float) -> str:
    """A tick: "30 s", "5 min", "36 h", "3 d"."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size and (unit != "d" or seconds % size == 0):
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s" if seconds else "0"


def time_axis(high: float, title: str) -> Axis:
    """From 0, with at most eight ticks."""
    high = max(high, 1.0)
    step = next((step for step in _TIME_STEPS if high / step <= 8), 28 * 86400)
    return Axis(0.0, high, [(i * step, short(i * step)) for i in range(int(high / step) + 1)], title=title)


def log_time_axis(values: Sequence[float], title: str) -> Axis:
    known = [value for value in values if isfinite(value) and value > 0] or [1.0, 10.0]
    low, high = min(known), max(known) * 1.02
    if high / low < 3:
        low, high = low / 1.8, high * 1.8
    return Axis(low, high, [(t, short(t)) for t in _LOG_TIMES if low <= t <= high], log=True, title=title)


def log_axis(values: Sequence[float], title: str) -> Axis:
    known = [value for value in values if isfinite(value) and value > 0] or [0.5, 2.0]
    low, high = min(*known, 0.5), max(*known, 2.0) * 1.02
    ticks = [
        (number * 10.0**power, f"{number * 10.0**power:g}")
        for power in range(floor(log10(low)), ceil(log10(high)) + 1)
        for number in (1, 2, 5)
    ]
    return Axis(low, high, [tick for tick in ticks if low <= tick[0] <= high], log=True, title=title)


def count_axis(high: float, title: str) -> Axis:
    high = max(high, 1.0)
    step = 10.0 ** floor(log10(high / 4)) if high > 4 else 1.0
    step = next(step * factor for factor in (1, 2, 5, 10) if high / (step * factor) <= 5)
    top = step * ceil(high / step)
    return Axis(0.0, top, [(i * step, f"{i * step:g}") for i in range(int(top / step) + 1)], title=title)


def share_axis(title: str) -> Axis:
    return Axis(0.0, 1.0, [(i / 4, f"{25 * i} %") for i in range(5)], title=title)


def chart(label: str, series: Sequence[Series], x: Axis, y: Axis, marks: Sequence[float] = ()) -> str:
    """One chart. `marks` are values of x at which a dashed line stands."""
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    parts += grid(x, y, _LEFT, right, _TOP, bottom)
    for mark in marks:
        at = x.at(mark, _LEFT, right)
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>')
    for one in series:
        path = _path(one, lambda v: x.at(v, _LEFT, right), lambda v: y.at(v, bottom, _TOP))
        if path:
            parts.append(f'<path class="line {one.css}" d="{path}"><title>{escape(one.name)}</title></path>')
    return "".join([*parts, "</svg>"])


def grid(x: Axis, y: Axis | None, left: float, right: float, top: float, bottom: float) -> list[str]:
    parts = ['<g class="grid">']
    for value, text in x.ticks:
        at = x.at(value, left, right)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 15}" text-anchor="middle">{text}</text>')
    for value, text in y.ticks if y is not None else ():
        at = y.at(value, bottom, top) if y is not None else 0.0
        parts.append(f'<line x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{left - 7}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    if x.title:
        parts.append(f'<text x="{(left + right) / 2}" y="{bottom + 32}" text-anchor="middle">{escape(x.title)}</text>')
    return [*parts, "</g>"]


def _path(series: Series, across: Callable[[float], float], down: Callable[[float], float]) -> str:
    """Points less than half a pixel apart are passed over."""
    parts: list[str] = []
    last_x, last_y = -inf, -inf
    for value_x, value_y in series.points:
        x, y = across(value_x), down(value_y)
        if abs(x - last_x) < 0.5 and abs(y - last_y) < 0.5:
            continue
        if series.steps and parts:
            parts.append(f"H{x:.1f}V{y:.1f}")
        else:
            parts.append(f"{'L' if parts else 'M'}{x:.1f} {y:.1f}")
        last_x, last_y = x, y
    return "".join(parts)


def cdf(values: Sequence[float], of: int) -> Points:
    """Share of `of` things that are at most x."""
    ordered = sorted(values)
    return [(value, (rank + 1) / max(of, 1)) for rank, value in enumerate(ordered)]
