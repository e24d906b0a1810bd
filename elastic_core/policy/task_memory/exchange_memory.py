"""What jobs have told of exchanges, for the jobs of their task that come after: costs by task, links by type of slots.

Plain JSON in `Plan.state` under "exchanges", as far as there is any. Costs are of a model, so of a task; what a link
takes is of the pool, and all jobs teach it: a job that never left its node learns from others what that would cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from elastic_core.domain import EXACT, ExchangeCost, JobView, Limits, Link, from_json, to_json
from elastic_core.predict.speed.exchange_forecast import ExchangeForecast, Links, as_of_one_rank, forecast_of

MOST_TASKS = 256  # the latest

Costs = dict[str, dict[str, ExchangeCost]]  # by task with the options of its exchange, then by algorithm


@dataclass(frozen=True)
class ExchangeMemory:
    costs: Costs = field(default_factory=dict)
    links: dict[str, Links] = field(default_factory=dict)  # by type

    @staticmethod
    def of(state: Mapping[str, Any], jobs: Sequence[JobView]) -> ExchangeMemory:
        """What is remembered, and what these jobs told. What another version wrote in another form is forgotten."""
        memory = _stored(state)
        telling = [job for job in jobs if job.exchange is not None]
        for job in telling:
            assert job.exchange is not None
            key = _key(job.task, job.limits)
            known = memory.costs.pop(key, {})
            memory.costs[key] = known | {cost.algorithm: cost for cost in job.exchange.costs}
        for gone in list(memory.costs)[:-MOST_TASKS]:
            del memory.costs[gone]
        memory.links.update(_links_of(telling, memory.links))
        return memory

    def forecast(self, task: str, limits: Limits) -> ExchangeForecast | None:
        """For the jobs of a task with these limits; None where nothing is to be said of them."""
        costs = self.costs.get(_key(task, limits)) if limits.comm != EXACT else None
        return None if costs is None else forecast_of(costs, self.links, limits)

    def to_state(self) -> dict[str, Any]:
        """Nothing, where no job has told any."""
        if not self.costs and not self.links:
            return {}
        costs = {key: [to_json(cost) for cost in of.values()] for key, of in self.costs.items()}
        return {"exchanges": {"costs": costs, "links": {kind: to_json(of) for kind, of in self.links.items()}}}


NO_EXCHANGES = ExchangeMemory()


def _key(task: str, limits: Limits) -> str:
    """An interval, or a stage within nodes, makes other costs of the same algorithm."""
    return f"{task} {limits.comm_options}".rstrip()


def _stored(state: Mapping[str, Any]) -> ExchangeMemory:
    try:
        stored = state["exchanges"]
        costs = {
            key: {cost.algorithm: cost for cost in (from_json(ExchangeCost, one) for one in of)}
            for key, of in stored["costs"].items()
        }
        return ExchangeMemory(costs, {kind: from_json(Links, of) for kind, of in stored["links"].items()})
    except (KeyError, TypeError, ValueError, AttributeError):  # pydantic's errors are ValueErrors
        return ExchangeMemory()


def _links_of(jobs: Sequence[JobView], before: Mapping[str, Links]) -> dict[str, Links]:
    """By type: the middle of what these jobs met, and what is remembered where none of them met any."""
    met: dict[str, tuple[list[Link], list[Link]]] = {}
    for needs in (job.exchange for job in jobs):
        link = None if needs is None else as_of_one_rank(needs)
        if needs is not None and link is not None:
            met.setdefault(needs.type, ([], []))[needs.num_nodes > 1].append(link)
    return {
        kind: Links(
            within=_middle(within) or before.get(kind, Links()).within,
            between=_middle(between) or before.get(kind, Links()).between,
        )
        for kind, (within, between) in met.items()
    }


def _middle(links: Sequence[Link]) -> Link | None:
    """To three digits: models that rest on it stay as they are where it hardly changes."""
    if not links:
        return None
    latency, per_byte = (median(of) for of in zip(*((one.latency, one.seconds_per_byte) for one in links), strict=True))
    return Link(float(f"{latency:.3g}"), float(f"{per_byte:.3g}"))
