"""`rl_lstm`: HeterPS's learnt planner. A policy trained beforehand over a family of problems answers at once; where it
finds nothing, it is trained by REINFORCE on the problem itself, as `rl_lstm_search` always does.

An answer: the policy's likeliest choice, some that it draws, and all single types; the cheapest are improved by changes
of one stage, layer or border; the best few get their units exactly, and the cheapest is the answer, never dearer than
the cheapest single type. What many choices cost at once is `choice_costs`'. `search_by` sees costs only, so that it
also serves where a cost is measured and has no form.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from elastic_core.placement.choice_costs import ChoiceCosts, Choices
from elastic_core.placement.learnt import policy_files
from elastic_core.placement.learnt.layer_policy import Features, LayerPolicy, drawn, features, likeliest
from elastic_core.placement.learnt.neighbours import neighbours
from elastic_core.placement.learnt.reinforce import Cost, Training, reinforce
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.planners.planner import BestOf, Found, Planner
from elastic_core.placement.stage_costs import Tables
from elastic_core.placement.stretches import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    draws: int = 60
    starts: int = 3  # choices that are improved
    rounds: int = 6  # of changes at most; it ends where none is cheaper
    exact: int = 4  # choices whose units are found exactly


class RlLstm(Planner):
    name: ClassVar[str] = "rl_lstm"
    summary: ClassVar[str] = "a policy over the layers, trained beforehand by REINFORCE over a family of problems"

    def __init__(self, policy: LayerPolicy | None = None, answering: Answering | None = None) -> None:
        """`policy`: a trained one; left out: that of the package."""
        self._policy = policy_files.shipped() if policy is None else policy
        self._answering = answering or Answering()

    def search(self, tables: Tables, rng: np.random.Generator) -> Found:
        best = BestOf(tables)
        looked = answer(self._policy, tables, best, rng, self._answering)
        if best.best is None:  # far from the family
            search_by(best.cost, tables.problem, rng, Training(), self._policy)
        found = best.found(self.name)
        return Found(placement=found.placement, bound=None, evaluated=max(looked, found.evaluated))


class RlLstmSearch(Planner):
    """As HeterPS has it: one policy a problem. Seconds, and costs are all that it is told."""

    name: ClassVar[str] = "rl_lstm_search"
    summary: ClassVar[str] = "a policy over the layers, trained by REINFORCE on the problem's costs"

    def __init__(self, training: Training | None = None, policy: LayerPolicy | None = None) -> None:
        """`policy`: where to begin; left out: an untrained one."""
        self._training = training or Training()
        self._policy = policy

    def search(self, tables: Tables, rng: np.random.Generator) -> Found:
        best = BestOf(tables)
        search_by(best.cost, tables.problem, rng, self._training, self._policy)
        return best.found(self.name)


LEARNT: dict[str, type[RlLstm] | type[RlLstmSearch]] = {kind.name: kind for kind in (RlLstm, RlLstmSearch)}


def answer(policy: LayerPolicy, tables: Tables, best: BestOf, rng: np.random.Generator, how: Answering) -> int:
    """Tells `best` the few cheapest choices that it found; how many it looked at."""
    with _one_thread(), torch.no_grad():
        given = features(tables.problem)
        scores, stay = policy.of(given)
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        some = drawn(scores[None], stay[None], how.draws, generator)[0]
        choices = torch.cat((likeliest(scores, stay)[None], some)).numpy()
    single = np.repeat(np.arange(len(tables.problem.types))[:, None], len(given.order), axis=1)
    choices = np.unique(np.concatenate((choices, single)), axis=0).astype(np.intp)
    costs = ChoiceCosts([tables])
    choices, found, looked = _improved(choices, costs, given, how, len(tables.problem.types))
    for at in np.argsort(found, kind="stable")[: how.exact]:
        if np.isfinite(found[at]):
            best.cost(_by_layer(given, choices[at : at + 1])[0].tolist())
    return looked


def _improved(
    choices: Choices, costs: ChoiceCosts, given: Features, how: Answering, types: int
) -> tuple[Choices, Floats, int]:
    """The choices, and the cheapest changes of the cheapest of them, with their costs; how many were looked at."""
    found = costs(_by_layer(given, choices))
    looked = len(choices)

    ends = []
    for start in _starts(choices, found, how.starts):
        at, cost = choices[start], float(found[start])
        for _ in range(how.rounds):
            changes = neighbours(at, types)
            if not len(changes):
                break
            changed = costs(_by_layer(given, changes))
            looked += len(changes)
            least = int(changed.argmin())
            if not changed[least] < cost:
                break
            at, cost = changes[least], float(changed[least])
        ends.append((at, cost))
    every, first = np.unique(np.concatenate((choices, [end[0] for end in ends])), axis=0, return_index=True)
    return every, np.concatenate((found, [end[1] for end in ends]))[first], looked


def _starts(choices: Choices, found: Floats, count: int) -> list[int]:
    """The cheapest, by index, of which none is close to a cheaper one."""
    apart = max(1, choices.shape[1] // 5)
    picked: list[int] = []
    for at in np.argsort(found, kind="stable").tolist():
        if len(picked) < count and all((choices[at] != choices[other]).sum() >= apart for other in picked):
            picked.append(at)
    return picked


def _by_layer(given: Features, choices: Choices) -> Choices:
    """From the order of the chains to the layers' own."""
    turned = np.empty_like(choices)
    turned[:, list(given.order)] = choices
    return turned


def search_by(
    cost: Cost,
    problem: PlacementProblem,
    rng: np.random.Generator,
    training: Training,
    policy: LayerPolicy | None = None,
) -> None:
    """Asks `cost` of choices that get better. `policy`: a trained one to begin with, which stays as it is; left out:
    an untrained one. The caller's random state and threads of torch are left as they are."""
    seed = int(rng.integers(2**31))
    with _one_thread():
        if policy is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                learning = LayerPolicy()
        else:
            learning = copy.deepcopy(policy).requires_grad_()
        reinforce(learning, features(problem), cost, torch.Generator().manual_seed(seed), training)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors are so small that threads wait for each other most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
