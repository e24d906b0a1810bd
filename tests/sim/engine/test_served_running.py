"""Jobs with parameter servers on slots of their own, in the simulator: by their true form, as policies learn it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from elastic_core.domain import Layout, Node, Plan, Snapshot
from elastic_core.policy import registry
from elastic_core.sim.engine.engine import simulate
from elastic_core.sim.ground_truth.physics import Nodes
from elastic_core.sim.ground_truth.workload import nodes
from tests.sim.builders import QUIET, allowed, of, sim_job

POOL = nodes("cpu", 1, 4)
SERVED = (Layout(servers=1), Layout(servers=2))


@dataclass(frozen=True)
class TwoForms:
    """0.1 s a sample on a CPU slot, a hundredth of it on others; an exchange takes `ring` seconds among replicas, and
    `exchange` x workers / servers with them."""

    ring: float
    exchange: float
    work: float = 40_000.0
    base_batch: int = 40
    rescale_seconds: float = 5.0

    @property
    def epoch_ends(self) -> Sequence[float]:
        return (self.work,)

    def max_local(self, kind: str, nodes: Nodes) -> int:
        return 10**9

    def seconds(self, kind: str, nodes: Nodes, local: int, accumulation: int) -> tuple[float, float]:
        sync = self.ring if sum(nodes) > 1 else 0.0
        return _sample_seconds(kind) * local * accumulation + sync, sync

    def served_seconds(self, kind: str, num_nodes: int, layout: Layout, batch: int) -> tuple[float, float]:
        wait = self.exchange * layout.data / layout.servers
        return _sample_seconds(kind) * batch / layout.data + wait, wait

    def gradient(self, batch: int, epoch: int) -> tuple[float, float] | None:
        return None


def _sample_seconds(kind: str) -> float:
    return 0.1 if kind == "cpu" else 0.01


class Watched:
    """A policy, and the layouts that it gave, one after another."""

    laws: frozenset[Any] = frozenset()

    def __init__(self, name: str) -> None:
        self.name, self._inner = name, registry.get(name)
        self.layouts: list[Layout] = []
        self.counts: list[Mapping[str, int]] = []  # of slots by type, of the first job

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        plan = self._inner.decide(snapshot, rng)
        layouts = [target.layout for target in plan.targets.values() if target.num_slots]
        self.layouts += [layout for layout in layouts if not self.layouts or layout != self.layouts[-1]]
        self.counts += [target.counts for target in plan.targets.values() if target.num_slots][:1]
        return replace(plan, wake_at=snapshot.now + 60.0)


def ran(
    policy: str, truth: TwoForms, cuts: tuple[Layout, ...], counts: Sequence[int], pool: Sequence[Node] = POOL
) -> tuple[Watched, float]:
    watched = Watched(policy)
    job = sim_job("a", truth=truth, limits=allowed(counts, (40, 40), cuts=cuts, requested_slots=max(counts)))
    result = simulate(of(job), pool, watched, QUIET)
    (done,) = result.jobs
    assert done.finished_at is not None
    return watched, done.finished_at


def test_a_job_takes_as_long_as_its_workers_and_servers_do():
    """1,000 steps on one worker and one server: 4 s of computing, and half a second of exchange."""
    _, finished = ran("fifo", TwoForms(ring=0.0, exchange=0.5), SERVED, (2,))
    assert finished == pytest.approx(5 + 1_000 * 4.5)


@pytest.mark.parametrize("policy", ["horizon", "aiturbo", "optimus"])
def test_a_slow_all_reduce_is_left_for_servers_once_it_was_measured(policy: str):
    watched, _ = ran(policy, TwoForms(ring=20.0, exchange=0.02), (Layout(), *SERVED), (2, 3, 4))
    assert watched.layouts[-1].servers > 0


@pytest.mark.parametrize("policy", ["horizon", "aiturbo", "optimus"])
def test_slow_servers_are_left_for_an_all_reduce_once_they_were_measured(policy: str):
    watched, _ = ran(policy, TwoForms(ring=0.05, exchange=20.0), (Layout(), *SERVED), (2, 3, 4))
    assert watched.layouts[-1].servers == 0


@pytest.mark.parametrize("policy", ["horizon", "aiturbo", "optimus"])
def test_servers_are_added_where_workers_wait_for_them(policy: str):
    watched, _ = ran(policy, TwoForms(ring=0.0, exchange=8.0), SERVED, (2, 3, 4))
    assert watched.layouts[-1].servers == 2


def test_the_default_policy_ends_up_with_workers_on_accelerators_and_servers_on_processors():
    """1,000 steps; two workers on accelerators compute for 0.2 s of each, and exchange for 0.1 s."""
    pool = (*nodes("gpu", 1, 2), *nodes("cpu", 1, 2))
    watched, finished = ran("horizon", TwoForms(ring=0.0, exchange=0.1), SERVED, (2, 3, 4), pool)
    assert watched.counts[-1] == {"gpu": 2, "cpu": 2}
    assert watched.layouts[-1] == Layout(data=2, servers=2)
    assert finished < 1_000 * (0.2 + 0.1) * 1.5
