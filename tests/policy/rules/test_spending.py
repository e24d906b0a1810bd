"""Money: budgets ban options, a preference for cost leaves the cheapest, and neither stops a job for good."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import JobView, Node, Slot, Snapshot, Target
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.options import Options
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.rules.spending import NEAR, Spending, prices_of, spending
from tests.policy.builders import NOW, holding, job, limits, measured, nodes, point, snapshot

WIDE = limits((1, 2, 4, 8), batch=(64, 64))
# Of two types, `fast` is twice as fast and four times as dear; speed-ups are a power of 0.7.
SPEEDS = tuple(point(k, 64, 1.0 / k**0.7, sync=0.1, kind="slow") for k in (1, 2, 4, 8)) + tuple(
    point(k, 64, 0.5 / k**0.7, sync=0.05, kind="fast") for k in (1, 2, 4, 8)
)
PRICES = {"slow": 1.0, "fast": 4.0}


def pool(**prices: float) -> tuple[Node, ...]:
    priced = {**PRICES, **prices}
    return tuple(replace(node, price_per_slot_hour=priced[node.type])
                 for node in (*nodes(8, kind="slow"), *nodes(8, kind="fast")))  # fmt: skip


def a_job(name: str = "a", **more: object) -> JobView:
    """36,000 steps of 64 samples: ten hours on one slow slot."""
    return measured(job(name, lim=WIDE, task="t", total_samples=36_000 * 64, **more), *SPEEDS)


def target(view: JobView, where: tuple[Node, ...] | None = None, *others: JobView) -> Target:
    picture: Snapshot = snapshot(where or pool(), view, *others)
    return Horizon().decide(picture, Random(0)).targets[view.job_id]


def test_without_a_wish_a_job_alone_takes_what_is_fastest() -> None:
    chosen = target(a_job())
    assert chosen.wanted == {"fast": 8}
    assert "cost" not in chosen.reason


def test_who_prefers_cost_gets_one_slot_of_the_cheap_type() -> None:
    chosen = target(a_job(prefers_cost=True))
    assert chosen.wanted == {"slow": 1}
    assert "prefers cost: only what costs least for its work" in chosen.reason


def test_with_a_deadline_it_gets_the_cheapest_that_meets_it() -> None:
    """Ten hours of work in five: four slow slots take 3.8, two take 6.2; of fast ones one takes 5."""
    chosen = target(a_job(prefers_cost=True, deadline=NOW + 5.0 * 3600))
    assert chosen.wanted == {"slow": 4}
    assert "and meets its deadline" in chosen.reason


def test_a_deadline_that_nothing_meets_leaves_cost_aside() -> None:
    chosen = target(a_job(prefers_cost=True, deadline=NOW + 600.0))
    assert chosen.wanted == {"fast": 8}
    assert "prefers cost, but no slots within reach meet its deadline" in chosen.reason
    assert "nothing that there is meets it" in chosen.reason


def test_where_nothing_costs_anything_the_wish_changes_nothing() -> None:
    free = pool(slow=0.0, fast=0.0)
    assert target(a_job(prefers_cost=True, budget=0.1), free) == target(a_job(), free)


def test_a_budget_bans_what_is_expected_to_cost_more() -> None:
    """Ten hours of one slow slot cost 10; eight slow ones 19, a fast one 20, eight fast ones 38."""
    assert target(a_job(budget=40.0)).wanted == {"fast": 8}
    assert target(a_job(budget=19.5)).wanted == {"slow": 8}
    assert target(a_job(budget=12.4)).wanted == {"slow": 2}


def test_what_was_spent_counts() -> None:
    assert target(a_job(budget=40.0, spent=20.5)).wanted == {"slow": 8}


def test_over_its_budget_a_job_goes_on_with_the_cheapest_and_says_so() -> None:
    chosen = target(a_job(budget=12.0, spent=6.0))
    assert chosen.wanted == {"slow": 1}
    assert "nothing keeps it within its budget: only the cheapest is left to it" in chosen.reason


def test_a_price_that_falls_makes_the_other_type_the_cheap_one() -> None:
    assert target(a_job(prefers_cost=True), pool(fast=1.5)).wanted == {"fast": 1}


def test_wishes_of_one_leave_the_others_alone() -> None:
    thrifty, other = a_job("thrifty", prefers_cost=True), a_job("other")
    assert target(thrifty, None, other).wanted == {"slow": 1}
    assert target(other, None, thrifty).wanted == {"fast": 8}


def test_the_price_of_a_type_is_the_mean_over_the_slots_that_are_there() -> None:
    where = (
        Node(name="n1", type="t4", num_slots=3, price_per_slot_hour=1.0),
        Node(name="n2", type="t4", num_slots=1, price_per_slot_hour=5.0),
        Node(name="n3", type="t4", num_slots=8, price_per_slot_hour=99.0, present=False),
    )
    options = Options.of({"t4": (3, 1)}, [])
    assert prices_of(where, options) == pytest.approx(np.full(len(options.counts), 2.0))


def wishes(view: JobView, prices: list[float], goodput: list[float], work: float) -> Spending:
    options = Options.of({"slow": (8,), "fast": (8,)}, [])
    rate = np.asarray([goodput])
    with np.errstate(divide="ignore"):
        seconds = np.where(rate > 0, work / np.where(rate > 0, rate, 1.0), np.inf)
    found = spending(
        [view], options, np.asarray(prices), NOW, rate, seconds, np.asarray([NOTHING]),
        np.full((1, len(options.counts)), 30.0),
        lambda row: np.zeros(len(options.counts)),
    )  # fmt: skip
    assert found is not None
    return found


@given(
    prices=st.lists(st.floats(0.1, 100.0), min_size=8, max_size=8),
    goodput=st.lists(st.one_of(st.just(0.0), st.floats(1.0, 1e4)), min_size=8, max_size=8).filter(any),
    work=st.floats(1.0, 1e8),
    budget=st.one_of(st.none(), st.floats(0.1, 1e6)),
    cost=st.booleans(),
)
def test_something_is_always_left_and_what_is_banned_is_dearer(
    prices: list[float], goodput: list[float], work: float, budget: float | None, cost: bool
) -> None:
    view = job("a", budget=budget, prefers_cost=cost or budget is None)
    allowed = wishes(view, prices, goodput, work).allowed[0]
    usable = np.asarray(goodput) > 0
    counts = Options.of({"slow": (8,), "fast": (8,)}, []).counts
    rate = np.asarray(prices) * counts / 3600
    total = np.where(usable, rate * (30.0 + work / np.where(usable, goodput, 1.0)), np.inf)
    of_work = np.where(usable, rate / np.where(usable, goodput, 1.0), np.inf)
    start = int(np.where(counts == 1, total, np.inf).argmin())
    assert (usable & allowed).any()
    assert allowed[start] == usable[start], "its cheapest start is always left"
    chosen = allowed & (np.arange(len(counts)) != start)
    if budget is not None:
        assert (total[chosen] <= max(budget, total.min())).all()
    if budget is None:
        assert of_work[chosen].max(initial=0.0) <= (1 + NEAR) * of_work[~allowed].min(initial=np.inf)
        assert allowed[int(of_work.argmin())]


def beside_one_that_holds_the_cheap_slots(waited: float) -> Target:
    held = tuple(Slot("slow-0", index, "slow") for index in range(8))
    other = holding(measured(job("other", lim=limits((8,), batch=(64, 64), types=("slow",)), task="t"), *SPEEDS), *held)
    thrifty = a_job(prefers_cost=True, waiting_since=NOW + 100.0 - waited)
    return target(thrifty, None, replace(other, total_samples=64 * 10**5))


def test_rather_than_pay_more_it_waits_but_not_for_ever() -> None:
    """The dear type stands idle. After eight hours its turn comes, on the cheap one."""
    soon = beside_one_that_holds_the_cheap_slots(waited=60.0)
    assert soon.num_slots == 0
    assert "prefers cost" in soon.reason
    late = beside_one_that_holds_the_cheap_slots(waited=9 * 3600.0)
    assert late.wanted == {"slow": 1}
    assert "put first by its turn, after a long wait" in late.reason
