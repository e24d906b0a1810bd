"""How much work a job is whose user declares none: from finished jobs of its task, and from what it has done already.

The total is drawn from a mixture that does not depend on the job's progress: kernels over the logarithm of the task's
finished works, the same over the works of all tasks, and a Lomax tail, whose expected remainder grows with what is
done (Lindy's law: heavy tails of job sizes, Harchol-Balter and Downey 1997). What is known of a running job is that its
total exceeds what it has done: the mixture is truncated there, so that median, low and high never fall as it goes on,
and once a job has outlived its like the tail takes over. How alike the jobs of a task are (the kernels' width) is
weighed by leave-one-out likelihood, and so is how often one departs from all before. Of all tasks a whole task is left
out at a time: that a hundred jobs of one are alike says nothing of how near a job of another will come to them. Works
are in any one unit, the caller's.

Of jobs that were cut off it is known that they needed more than they had done. Each hands its share on to those that
did more (Kaplan and Meier 1958, as Efron 1967 redistributes to the right); the shares of those that had outlived every
finished job go to what the wider knowledge says of more work than theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

INTERVAL = (0.1, 0.9)  # the quantiles called low and high
REMEMBERED = 64  # of a history only the latest so many count
_TAIL = 1.5  # power of the Lomax tail: its mean remainder is twice, its median remainder 0.59 of (done + scale)
_WIDER_WEIGHTS = np.asarray([0.05, 0.15, 0.5, 1.5])  # finished jobs that the wider knowledge counts for
_WIDTHS = np.asarray([0.03, 0.06, 0.125, 0.25, 0.5, 1.0])
_WIDTH_PRIOR = np.exp(-0.5 * np.log(_WIDTHS / 0.5) ** 2)
_GRID = 256
_NONE: Floats = np.empty(0)


@dataclass(frozen=True, slots=True)
class WorkEstimate:
    """Of the total work: median and an 80 % interval. Of what is left: its mean.

    The mean counts a total above `high` as `high`: beyond it the tail is an assumption, which would decide the mean.
    """

    median: float
    low: float
    high: float
    mean_remaining: float


def estimate(history: Sequence[float], all_history: Sequence[float], done: float, scale: float = 1.0) -> WorkEstimate:
    """The total work of a job that has done `done` and is not finished.

    `history`: works of finished jobs of its task, oldest first; `all_history`: of all tasks. Without either, the
    answer is a multiple of (done + `scale`). What is no positive finite number is passed over.
    """
    return prior(tuple(history), tuple(all_history), scale).estimate(done)


@lru_cache(maxsize=4096)
def prior(
    history: tuple[float, ...], all_history: tuple[float, ...], scale: float = 1.0, tasks: tuple[str, ...] = (), *,
    cut_off: tuple[float, ...] = (), all_cut_off: tuple[float, ...] = (),
) -> WorkPrior:  # fmt: skip
    """The distribution before anything is done. Keep it, or rely on its being remembered here.

    `tasks`: whose each of `all_history` is; without them each is taken for one of a task of its own. `cut_off` and
    `all_cut_off`: what jobs had done that were cut off; they say something beside finished ones only.
    """
    own, (every, groups) = _logs(history), _grouped(all_history, tasks)
    own_cut = _logs(cut_off if len(own) else ())
    every_cut = _logs(all_cut_off if len(every) else ())
    typical = np.concatenate((own, own_cut) if len(own) else (every, every_cut))
    scale = float(np.exp(np.median(typical))) if len(typical) else _usable(scale)
    spread = np.concatenate((typical, every, every_cut, [np.log(scale)]))
    top = np.exp(min(spread.max() + 6.0, 600.0))
    works = np.append(0.0, np.geomspace(scale * 1e-4, max(top, scale * 100.0), _GRID))
    if len(own):  # the steps of a tight history must not fall between two points of the grid
        near = np.exp(np.unique(np.round(own - np.log(scale), 1))[:, None] + np.linspace(-0.2, 0.2, 21)) * scale
        works = np.unique(np.concatenate((works, near.ravel())))
    known = _Kernels(own, _Kernels(every, _Tail(scale), groups, every_cut), cut_off=own_cut)
    return WorkPrior.of(works, known.survival(works), scale)


@dataclass(frozen=True)
class WorkPrior:
    """A survival function that is a power of (work + scale) between the points of a grid, and `_TAIL` after the last.

    Kept as logarithms: `position` = log(1 + work / scale), `hazard` = -log survival, both ascending; `beyond` is the
    integral of the survival from each point on, in units of the scale.
    """

    scale: float
    position: Floats
    hazard: Floats
    beyond: Floats

    @staticmethod
    def of(works: Floats, survival: Floats, scale: float) -> WorkPrior:
        position = np.log1p(works / scale)
        hazard = np.maximum.accumulate(-np.log(np.maximum(survival, 1e-300)))
        pieces = _areas(position[:-1], position[1:], hazard[:-1], hazard[1:])
        last = np.exp(position[-1] - hazard[-1]) / (_TAIL - 1.0)
        return WorkPrior(scale, position, hazard, np.append(np.cumsum(pieces[::-1])[::-1], 0.0) + last)

    def estimate(self, done: float) -> WorkEstimate:
        done = min(done, 1e200) if isfinite(done) and done > 0 else 0.0
        at = self._position(done)
        here = self._hazard(at)
        low, median, high = (max(self._work(here - np.log(1.0 - q)), done) for q in (INTERVAL[0], 0.5, INTERVAL[1]))
        area = self.scale * (self._area_from(at) - self._area_from(self._position(high)))
        return WorkEstimate(median, low, high, max(area, 0.0) / float(np.exp(-here)))

    def quantiles(self, done: float, probabilities: Floats) -> Floats:
        """Of the total work, given that it exceeds `done`; probabilities below 1, in any order."""
        done = min(done, 1e200) if isfinite(done) and done > 0 else 0.0
        hazard = self._hazard(self._position(done)) - np.log1p(-probabilities)
        over = np.maximum(hazard - float(self.hazard[-1]), 0.0)
        totals: Floats = np.expm1(np.interp(hazard, self.hazard, self.position) + over / _TAIL) * self.scale
        return np.maximum(totals, done)

    def exceeds(self, work: float, done: float) -> float:
        """Probability that the total exceeds `work`, given that it exceeds `done`."""
        if work <= done:
            return 1.0
        return float(np.exp(self._hazard(self._position(done)) - self._hazard(self._position(work))))

    def _position(self, work: float) -> float:
        return float(np.log1p(work / self.scale))

    def _hazard(self, at: float) -> float:
        over = max(at - float(self.position[-1]), 0.0)
        return float(np.interp(at, self.position, self.hazard)) + _TAIL * over

    def _work(self, hazard: float) -> float:
        over = max(hazard - float(self.hazard[-1]), 0.0)
        return float(np.expm1(np.interp(hazard, self.hazard, self.position) + over / _TAIL)) * self.scale

    def _area_from(self, at: float) -> float:
        """Integral of the survival over all works beyond this position, in units of the scale."""
        here = self._hazard(at)
        if at >= self.position[-1]:
            return float(np.exp(at - here)) / (_TAIL - 1.0)
        following = int(np.searchsorted(self.position, at, side="right"))
        ends = self.position[following], self.hazard[following]
        return float(_areas(at, ends[0], here, ends[1]) + self.beyond[following])


def _areas(start: Floats | float, end: Floats | float, before: Floats | float, after: Floats | float) -> Floats:
    """Integral of the survival over works, from position `start` to `end`, where hazard goes from `before` to `after`.

    In positions u the integrand is exp(u - hazard), an exponential between two points.
    """
    first, last = np.asarray(start) - before, np.asarray(end) - after
    width, rise = np.asarray(end) - np.asarray(start), last - first
    safe = np.where(np.abs(rise) < 1e-9, 1.0, rise)
    ratio = np.where(np.abs(rise) < 1e-9, 1.0 + rise / 2.0, np.expm1(safe) / safe)
    area: Floats = np.exp(first) * width * ratio
    return area


def _usable(scale: float) -> float:
    return min(scale, 1e100) if isfinite(scale) and scale > 1e-100 else 1.0


def _logs(works: Sequence[float]) -> Floats:
    return _grouped(works, ())[0]


def _grouped(works: Sequence[float], tasks: Sequence[str]) -> tuple[Floats, Ints]:
    """Logarithms of the latest works, and a number for the task of each."""
    named = zip(works, tasks or map(str, range(len(works))), strict=True)
    usable = [(work, task) for work, task in named if isfinite(work) and 1e-100 < work < 1e100][-REMEMBERED:]
    numbers = {task: number for number, (_, task) in enumerate(usable)}
    logs = np.log(np.asarray([work for work, _ in usable], dtype=np.float64))
    return logs, np.asarray([numbers[task] for _, task in usable], dtype=np.int64)


class _Tail:
    """Lomax: heavy-tailed on [0, inf)."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def survival(self, works: Floats) -> Floats:
        survival: Floats = (1.0 + works / self._scale) ** -_TAIL
        return survival

    def density(self, logs: Floats) -> Floats:
        """Of the logarithm."""
        relative = np.exp(logs) / self._scale
        density: Floats = _TAIL * relative * (1.0 + relative) ** (-_TAIL - 1.0)
        return density


class _Kernels:
    """Finished works, smoothed by kernels of several widths, mixed with the wider knowledge by several weights.

    `groups`: what is left out together when these are weighed; without them each work is by itself. `cut_off`: the
    logarithms of what jobs had done that were cut off."""

    def __init__(
        self, logs: Floats, wider: _Tail | _Kernels, groups: Ints | None = None, cut_off: Floats = _NONE
    ) -> None:
        self._logs, self._wider = logs, wider
        self._groups = np.arange(len(logs)) if groups is None else groups
        self._shares, self._outlived, self._beyond = _kaplan_meier(logs, cut_off)
        seen = len(logs) + len(cut_off)
        known = self._weigh() * seen / (seen + _WIDER_WEIGHTS)
        self._widths = known.sum(axis=1)  # share of each width; what is left is the wider knowledge's
        self._wider_share = 1.0 - float(known.sum())

    def survival(self, works: Floats) -> Floats:
        wider = self._wider.survival(works)
        if not len(self._logs):
            return wider
        with np.errstate(divide="ignore"):
            distance = self._logs[:, None] - np.log(works)
        each = np.asarray([self._shares @ ndtr(distance / width) for width in _WIDTHS])
        mixed: Floats = self._widths @ each + self._wider_share * wider
        if len(self._outlived):
            beyond = np.minimum(wider[:, None] / self._wider.survival(np.exp(self._outlived)), 1.0)
            mixed += self._beyond * self._widths.sum() * beyond.sum(axis=1)
        return mixed

    def density(self, logs: Floats) -> Floats:
        """Of the logarithm."""
        wider = self._wider.density(logs)
        if not len(self._logs):
            return wider
        each = np.asarray([self._shares @ _kernel(self._logs[:, None] - logs, width) for width in _WIDTHS])
        mixed: Floats = self._widths @ each + self._wider_share * wider
        if len(self._outlived):
            beyond = wider[:, None] / self._wider.survival(np.exp(self._outlived)) * (logs[:, None] > self._outlived)
            mixed += self._beyond * self._widths.sum() * beyond.sum(axis=1)
        return mixed

    def _weigh(self) -> Floats:
        """By (width, wider knowledge's weight): the width's prior times each work's likelihood given other groups'."""
        others = (self._groups[:, None] != self._groups) * (self._shares / self._shares.sum() * len(self._logs))
        wider = self._wider.density(self._logs)
        score = np.log(np.repeat(_WIDTH_PRIOR[:, None], len(_WIDER_WEIGHTS), axis=1))
        for i, width in enumerate(_WIDTHS if others.any() else ()):
            density = others * _kernel(self._logs[:, None] - self._logs, width)
            mixed = density.sum(axis=1)[:, None] + wider[:, None] * _WIDER_WEIGHTS
            score[i] += np.log(mixed / (others.sum(axis=1)[:, None] + _WIDER_WEIGHTS)).sum(axis=0)
        weight = np.exp(score - score.max())
        shared: Floats = weight / weight.sum()
        return shared


def _kaplan_meier(finished: Floats, cut_off: Floats) -> tuple[Floats, Floats, float]:
    """The share of each finished work; what those had done that outlived all of them, and the share of each of these.

    A finished work counts as over before one that was cut off at the same.
    """
    if not len(cut_off):
        return np.full(len(finished), 1.0 / max(len(finished), 1)), _NONE, 0.0
    ends, is_cut = np.concatenate((finished, cut_off)), np.repeat([False, True], [len(finished), len(cut_off)])
    order = np.lexsort((is_cut, ends))
    at_risk = len(ends) - np.arange(len(ends))
    survival = np.cumprod(np.where(is_cut[order], 1.0, 1.0 - 1.0 / at_risk))
    shares = np.empty(len(ends))
    shares[order] = np.append(1.0, survival[:-1]) / at_risk
    outlived = cut_off[cut_off >= finished.max()]
    return shares[: len(finished)], outlived, float(survival[-1]) / max(len(outlived), 1)


def _kernel(distance: Floats, width: float) -> Floats:
    density: Floats = np.exp(-0.5 * (distance / width) ** 2) / (width * np.sqrt(2 * np.pi))
    return density
