"""The planners by name, as the command line takes them.

The learnt ones are imported when they are asked for: they load torch.
"""

from __future__ import annotations

from elastic_core.errors import UserError
from elastic_core.placement.planners.bayesian import Bayesian
from elastic_core.placement.planners.brute_force import BruteForce
from elastic_core.placement.planners.evolved import Genetic
from elastic_core.placement.planners.exact import Exact, Milp
from elastic_core.placement.planners.planner import Planner
from elastic_core.placement.planners.simple_plans import CpuOnly, FirstOnCpu, GpuOnly, Greedy
from elastic_core.text import did_you_mean

DEFAULT = Exact.name
_PLANNERS: tuple[type[Planner], ...] = (
    Exact,
    Milp,
    BruteForce,
    Greedy,
    Genetic,
    Bayesian,
    CpuOnly,
    GpuOnly,
    FirstOnCpu,
)


_LEARNT = {
    "rl_lstm": "a policy over the layers, trained beforehand by REINFORCE over a family of problems",
    "rl_lstm_search": "a policy over the layers, trained by REINFORCE on the problem's costs",
}


def get(name: str) -> Planner:
    """Raises `UserError` that lists those there are."""
    for kind in _PLANNERS:
        if kind.name == name:
            return kind()
    if name in _LEARNT:
        from elastic_core.placement.learnt.rl_lstm import LEARNT

        return LEARNT[name]()
    raise UserError(f"no planner is called {name!r}.{did_you_mean(name, names())} There are: {', '.join(names())}")


def names() -> tuple[str, ...]:
    return tuple(summaries())


def summaries() -> dict[str, str]:
    return {kind.name: kind.summary for kind in _PLANNERS} | _LEARNT
