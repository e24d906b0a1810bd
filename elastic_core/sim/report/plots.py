"""Line charts as SVG text, drawn by matplotlib to stand inside one HTML page.

Promised: no script, nothing loaded, no ids (several charts share a page), the same text for the same figures. Colours
are names of CSS variables (`INKS`): the page defines them, once for light and once for dark. Figures are made without
pyplot, so nothing global is kept and no display is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from math import isfinite
from typing import Literal
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, Locator, LogLocator, MaxNLocator, MultipleLocator, NullLocator

WIDTH, HEIGHT = 640, 270  # of a line chart, in pixels, as are the margins
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 12, 40
NUM_COLOURS = 10
# CSS variable -> the colour that stands for it while matplotlib draws, which takes real colours only.
INKS: Mapping[str, str] = {
    name: f"#{number:06x}"
    for number, name in enumerate(["line", "soft", "idle", *(f"c{i}" for i in range(NUM_COLOURS))], start=1)
}
_VARIABLES = {colour: f"var(--{name})" for name, colour in INKS.items()}
_PIXELS_AN_INCH = 72  # matplotlib's SVG has 72 units an inch
_FONT_SIZE = 11
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_SVG = "http://www.w3.org/2000/svg"
ElementTree.register_namespace("", _SVG)

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_TIME_STEPS = (
    1, 5, 10, 30, _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE, _HOUR, 2 * _HOUR, 4 * _HOUR, 8 * _HOUR, 12 * _HOUR,
    _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY,
)  # fmt: skip
_LOG_TIMES = (0.1, 1, 10, _MINUTE, 10 * _MINUTE, _HOUR, 10 * _HOUR, 100 * _HOUR, 1000 * _HOUR)

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    ink: str  # one of `INKS`
    points: Points
    steps: bool = False  # holds its value until the next point


@dataclass(frozen=True, slots=True)
class Scale:
    """`low` to `high` is drawn; what lies outside is drawn at the edge."""

    low: float
    high: float
    locator: Locator
    label: Callable[[float], str]
    title: str = ""
    log: bool = False


def short_time(seconds: float) -> str:
    """A tick: "30 s", "5 min", "36 h", "3 d"."""
    for unit, size in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= size and (unit != "d" or seconds % size == 0):
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s" if seconds else "0"


def _number(value: float) -> str:
    return f"{value:g}"


def time_scale(high: float, title: str = "") -> Scale:
    """From 0, with at most eight steps between ticks."""
    high = max(high, 1.0)
    step = next((step for step in _TIME_STEPS if high / step <= 8), 28 * _DAY)
    return Scale(0.0, high, MultipleLocator(step), short_time, title)


def log_time_scale(seconds: Sequence[float], title: str) -> Scale:
    known = [value for value in seconds if isfinite(value) and value > 0] or [1.0, 10.0]
    low, high = min(known), max(known) * 1.02
    if high / low < 3:
        low, high = low / 1.8, high * 1.8
    return Scale(low, high, FixedLocator(_LOG_TIMES), short_time, title, log=True)


def log_scale(values: Sequence[float], title: str) -> Scale:
    """At least from a half to two."""
    known = [value for value in values if isfinite(value) and value > 0]
    return Scale(min([*known, 0.5]), max([*known, 2.0]) * 1.02, LogLocator(subs=(1, 2, 5)), _number, title, log=True)


def count_scale(high: float) -> Scale:
    """From 0 to the next tick above `high`."""
    locator = MaxNLocator(5, integer=True, steps=[1, 2, 5, 10])
    return Scale(0.0, float(locator.tick_values(0.0, max(high, 1.0))[-1]), locator, _number)


def share_scale() -> Scale:
    return Scale(0.0, 1.0, MultipleLocator(0.25), lambda share: f"{share:.0%}".replace("%", " %"))


def cdf(values: Sequence[float], of: int) -> Points:
    """Share of `of` things that are at most x."""
    return [(value, (rank + 1) / max(of, 1)) for rank, value in enumerate(sorted(values))]


def line_chart(label: str, series: Sequence[Series], x: Scale, y: Scale, marks: Sequence[float] = ()) -> str:
    """SVG of one line a series. `marks` are values of x at which a dashed line stands."""
    with drawing(WIDTH, HEIGHT, (_LEFT, _RIGHT, _TOP, _BOTTOM)) as axes:
        set_scale(axes, "x", x)
        set_scale(axes, "y", y)
        for mark in marks:
            axes.axvline(mark, color=INKS["soft"], linewidth=1, linestyle=(0, (3, 3)), clip_on=False)
        for number, line in enumerate(series):
            if line.points:
                across, up = np.asarray(line.points, dtype=np.float64).T
                axes.plot(
                    np.clip(across, x.low, x.high), np.clip(up, y.low, y.high), color=INKS[line.ink], linewidth=2,
                    drawstyle="steps-post" if line.steps else "default", clip_on=False, gid=f"series-{number}",
                )  # fmt: skip
        return svg_text(axes, label, {f"series-{number}": [line.name] for number, line in enumerate(series)})


@contextmanager
def drawing(width: float, height: float, margins: tuple[float, float, float, float]) -> Iterator[Axes]:
    """Empty axes without a frame, `width` by `height` pixels; `margins` left, right, top and bottom of them.

    What the user's own matplotlibrc says does not count.
    """
    left, right, top, bottom = margins
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {"svg.fonttype": "none", "svg.hashsalt": "elastic", "font.size": _FONT_SIZE, "text.parse_math": False}
        )
        figure = Figure(figsize=(width / _PIXELS_AN_INCH, height / _PIXELS_AN_INCH), facecolor="none")
        axes = figure.add_axes(
            (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height),
            frameon=False,
        )
        axes.set_axisbelow(True)
        axes.tick_params(length=0, pad=7, labelcolor=INKS["soft"])
        yield axes


def set_scale(axes: Axes, which: Literal["x", "y"], scale: Scale) -> None:
    drawn = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log" if scale.log else "linear", f"{which}lim": (scale.low, scale.high)})
    drawn.set_major_locator(scale.locator)
    drawn.set_minor_locator(NullLocator())
    drawn.set_major_formatter(lambda value, _: scale.label(value))
    drawn.grid(color=INKS["line"], linewidth=1, clip_on=False)
    drawn.set_label_text(scale.title, color=INKS["soft"])
    drawn.labelpad = 6


def svg_text(axes: Axes, label: str, titles: Mapping[str, Sequence[str]]) -> str:
    """The drawing as an element of a page. `titles`: what the paths of an artist say when pointed at, by its gid."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    buffer = StringIO()
    figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    root = ElementTree.fromstring(buffer.getvalue())
    for unwanted in ("metadata", "defs"):  # a style for the whole page among them
        for element in root.findall(f"{{{_SVG}}}{unwanted}"):
            root.remove(element)
    for element in root.iter():
        of_paths = titles.get(element.attrib.pop("id", ""), ())
        for path, title in zip(element.findall(f"{{{_SVG}}}path") if of_paths else (), of_paths, strict=True):
            ElementTree.SubElement(path, f"{{{_SVG}}}title").text = title
        if "style" in element.attrib:
            element.set("style", _with_variables(element.attrib["style"]))
    for measure in ("width", "height", "version"):
        root.attrib.pop(measure, None)
    root.attrib.update({"role": "img", "aria-label": label})
    return ElementTree.tostring(root, encoding="unicode")


def _with_variables(style: str) -> str:
    for colour, variable in _VARIABLES.items():
        style = style.replace(colour, variable)
    return style
