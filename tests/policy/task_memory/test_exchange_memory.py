"""Costs of exchanges by task and links by type, from decision to decision."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from elastic_core.domain import JobView, Link
from elastic_core.policy.task_memory.exchange_memory import MOST_TASKS, ExchangeMemory
from elastic_core.predict.speed.exchange_forecast import Links
from tests.policy.builders import job, limits, told_costs
from tests.predict.speed.test_exchange_forecast import BYTES, EXACT, FAST, SLOW

AUTO = limits(comm="auto", comm_allow="lossy")


def telling(name: str, link: Link | None, num_nodes: int = 1, task: str = "t", **more: object) -> JobView:
    needs = told_costs(EXACT, BYTES, num_nodes=num_nodes, link=link)
    return job(name, lim=AUTO, task=task, exchange=needs, **more)


def after(*jobs: JobView, state: object = None) -> ExchangeMemory:
    """What the next decision remembers."""
    told = ExchangeMemory.of(state or {}, jobs).to_state()
    return ExchangeMemory.of(json.loads(json.dumps(told)), ())


def test_a_link_that_one_task_has_met_counts_for_another_that_has_told_its_costs() -> None:
    memory = after(telling("a", FAST), telling("b", SLOW, num_nodes=2, task="u"))
    assert memory.links == {"cpu": Links(FAST, SLOW)}
    assert memory.forecast("t", AUTO).costs == (EXACT, BYTES)
    assert memory.forecast("never seen", AUTO) is None
    assert memory.forecast("t", limits()) is None


def test_the_middle_of_what_jobs_met_counts_and_what_was_met_before_until_somebody_meets_it_again() -> None:
    odd = [telling(name, Link(1e-5, beta)) for name, beta in (("a", 1e-10), ("b", 5e-10), ("c", 1.0))]
    first = ExchangeMemory.of({}, [*odd, telling("d", SLOW, num_nodes=2)])
    assert first.links["cpu"] == Links(Link(1e-5, 5e-10), SLOW)
    second = ExchangeMemory.of(first.to_state(), [telling("e", Link(1e-5, 2e-10))])
    assert second.links["cpu"] == Links(Link(1e-5, 2e-10), SLOW)


def test_costs_of_other_options_are_others() -> None:
    memory = after(telling("a", FAST))
    assert memory.forecast("t", replace(AUTO, comm="bytegrad", comm_allow="", comm_options="hierarchical")) is None
    assert memory.forecast("t", replace(AUTO, comm="bytegrad", comm_allow="")) is not None


def test_nothing_is_kept_where_nobody_tells_and_only_the_latest_tasks_are() -> None:
    assert ExchangeMemory.of({}, [job("a", lim=AUTO)]).to_state() == {}
    many = [telling(f"j{n}", FAST, task=f"t{n}") for n in range(MOST_TASKS + 3)]
    assert list(after(*many).costs) == [f"t{n}" for n in range(3, MOST_TASKS + 3)]


@pytest.mark.parametrize("odd", [{"exchanges": 1}, {"exchanges": {"costs": {"t": [{}]}, "links": {}}}])
def test_what_another_version_wrote_is_forgotten(odd: dict[str, object]) -> None:
    assert ExchangeMemory.of(odd, ()) == ExchangeMemory()
