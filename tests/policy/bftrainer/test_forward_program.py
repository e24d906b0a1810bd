"""The integer program finds what trying every allocation finds, and resizes less the more that a resize loses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.policy.bftrainer.count_pieces import pieces_of
from elastic_core.policy.bftrainer.forward_program import Grant, Request, solve
from tests.policy.strategies import BUSY

CAPACITY = {"a100": 5, "t4": 7}
EXACT = settings(BUSY, max_examples=80)


@dataclass(frozen=True)
class Made:
    """A job as the paper writes it: objective a second by type and count, and what is held, in plain numbers."""

    curves: dict[str, dict[int, float]]
    held: Grant
    up: float  # seconds
    down: float

    def request(self) -> Request:
        now = self.curves[self.held[0]][self.held[1]] if self.held is not None else 0.0
        pieces = [
            piece
            for kind, curve in self.curves.items()
            for piece in pieces_of(
                kind,
                curve,
                self.held[1] if self.held is not None and self.held[0] == kind else None,
                self.up * now,
                self.down * now,
            )
        ]
        return Request(tuple(pieces), self.held, self.down * now)

    def choices(self) -> list[Grant]:
        return [None, *((kind, count) for kind, curve in self.curves.items() for count in curve)]

    def worth(self, grant: Grant, forward: float) -> float:
        return forward * self.speed(grant) - self.lost(grant)

    def lost(self, grant: Grant) -> float:
        if grant == self.held or self.held is None:
            return 0.0
        if grant is None or (grant[0] == self.held[0] and grant[1] < self.held[1]):
            return self.down * self.speed(self.held)
        return (self.up if grant[0] == self.held[0] else max(self.up, self.down)) * self.speed(self.held)

    def speed(self, grant: Grant) -> float:
        return 0.0 if grant is None else self.curves[grant[0]][grant[1]]


@st.composite
def made(draw: st.DrawFn) -> Made:
    """Counts with gaps, speeds of any shape that the pieces can take: free at breakpoints, linear between."""
    curves = {}
    for kind in draw(st.sampled_from([("t4",), ("a100",), ("a100", "t4")])):
        counts = sorted(draw(st.sets(st.integers(1, 7), min_size=1, max_size=6)))
        points = [n for n in counts if n & (n - 1) == 0 or n - 1 not in counts or n + 1 not in counts]
        speeds = [draw(st.integers(1, 40)) / 4 for _ in points]
        curves[kind] = {n: float(np.interp(n, points, speeds)) for n in counts}
    fitting = [(kind, n) for kind, curve in curves.items() for n in curve if n <= 3]
    held = draw(st.none() | st.sampled_from(fitting)) if fitting else None
    return Made(curves, held, up=draw(st.integers(0, 60)), down=draw(st.integers(0, 60)))


@st.composite
def problems(draw: st.DrawFn) -> list[Made]:
    """Up to four jobs, which together hold no more than there is."""
    jobs: list[Made] = []
    room = dict(CAPACITY)
    for one in draw(st.lists(made(), min_size=1, max_size=4)):
        held = one.held if one.held is not None and one.held[1] <= room[one.held[0]] else None
        if held is not None:
            room[held[0]] -= held[1]
        jobs.append(Made(one.curves, held, one.up, one.down))
    return jobs


def every(jobs: Sequence[Made]) -> Iterator[tuple[Grant, ...]]:
    for grants in product(*(job.choices() for job in jobs)):
        used = {kind: sum(grant[1] for grant in grants if grant is not None and grant[0] == kind) for kind in CAPACITY}
        if all(used[kind] <= CAPACITY[kind] for kind in CAPACITY):
            yield grants


def total(jobs: Sequence[Made], grants: Sequence[Grant], forward: float) -> float:
    return sum(job.worth(grant, forward) for job, grant in zip(jobs, grants, strict=True))


def lost(jobs: Sequence[Made], grants: Sequence[Grant]) -> float:
    return sum(job.lost(grant) for job, grant in zip(jobs, grants, strict=True))


@EXACT
@given(jobs=problems(), forward=st.sampled_from([10.0, 60.0, 600.0]))
def test_no_allocation_is_worth_more_than_its_answer(jobs: list[Made], forward: float) -> None:
    answer = solve([job.request() for job in jobs], CAPACITY, forward)
    best = max(total(jobs, grants, forward) for grants in every(jobs))
    assert answer.proven
    assert answer.grants in set(every(jobs))
    assert answer.value == pytest.approx(best, rel=1e-5, abs=1e-6)
    assert total(jobs, answer.grants, forward) == pytest.approx(best, rel=1e-5, abs=1e-6)


@pytest.mark.nightly
@EXACT
@given(jobs=problems())
def test_resizes_that_lose_nothing_leave_the_most_objective_a_second(jobs: list[Made]) -> None:
    free = [Made(job.curves, job.held, up=0, down=0) for job in jobs]
    answer = solve([job.request() for job in free], CAPACITY, 1.0)
    most = max(sum(job.speed(grant) for job, grant in zip(jobs, grants, strict=True)) for grants in every(jobs))
    assert answer.value == pytest.approx(most, rel=1e-5)


@EXACT
@given(jobs=problems(), shorter=st.sampled_from([5.0, 20.0, 100.0]), times=st.sampled_from([1.5, 4.0, 30.0]))
def test_who_looks_further_ahead_never_pays_less_for_resizes(jobs: list[Made], shorter: float, times: float) -> None:
    """The longer a gain lasts, the more it may cost to get it (section 4 of the paper)."""
    near, far = (solve([job.request() for job in jobs], CAPACITY, forward) for forward in (shorter, shorter * times))
    assert lost(jobs, far.grants) >= lost(jobs, near.grants) - 1e-5 * abs(far.value)


def test_what_is_held_stays_where_nothing_is_worth_more() -> None:
    """Two jobs alike on 5 slots: who has three of them keeps them."""
    curve = {n: float(n) for n in range(1, 6)}
    jobs = [Made({"t4": curve}, ("t4", count), up=0, down=0) for count in (2, 3)]
    assert solve([job.request() for job in jobs], {"t4": 5}, 60.0).grants == (("t4", 2), ("t4", 3))


@pytest.mark.parametrize(("up", "down", "want"), [(0, 100, ("t4", 2)), (100, 0, ("t4", 1)), (0, 0, ("t4", 1))])
def test_up_and_down_have_costs_of_their_own(up: int, down: int, want: Grant) -> None:
    """A newcomer is worth a slot of a job that loses a fifth by it, unless shrinking loses more than is gained."""
    runs = Made({"t4": {1: 4.0, 2: 5.0}}, ("t4", 2), up=up, down=down)
    comes = Made({"t4": {1: 2.0}}, None, up=0, down=0)
    assert solve([runs.request(), comes.request()], {"t4": 2}, 60.0).grants[0] == want


def test_a_solver_at_its_limit_answers_with_what_is_held_or_better_and_says_so() -> None:
    rng = np.random.default_rng(3)
    jobs = []
    for _ in range(30):
        counts = np.arange(1, 33)
        curve = dict(zip(counts.tolist(), (counts ** rng.uniform(0.3, 1.0) * rng.uniform(1, 9)).tolist(), strict=True))
        jobs.append(Made({"t4": curve}, ("t4", 2), up=30, down=20))
    requests = [job.request() for job in jobs]
    cut, whole = (solve(requests, {"t4": 64}, 60.0, most_nodes=nodes) for nodes in (0, 5_000))
    keeping = sum(job.worth(job.held, 60.0) for job in jobs)
    assert not cut.proven
    assert keeping <= cut.value <= whole.value
