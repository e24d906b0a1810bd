"""A job's own code that sends what it likes with the tokens that its groups had: odd numbers and texts, and commits of
before. What is odd has to be refused, what is not has to leave everybody else alone: all promises hold meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from random import Random
from typing import TYPE_CHECKING, Any

from benchmarks.simulated_faults.host import Group
from elastic_core.domain import Layout, Observation, Slot
from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.protocol.http_client import HttpTrainer
from elastic_core.protocol.process_groups import ExitKind, ExitReport, LaunchOrder
from elastic_core.protocol.trainer import Commit, Heartbeat
from tests.builders import an_observation

if TYPE_CHECKING:
    from benchmarks.simulated_faults.world import World

FEWEST, MOST = 6, 12  # calls
HUGE = 10**30
Call = Callable[[HttpTrainer], Any]


def odd_calls(order: LaunchOrder) -> dict[str, Call]:
    """Each is to be refused."""
    beat = Heartbeat(step=0, samples=0, at=0.0)
    odd_beats = [{"progress": nan}, {"progress": inf}, {"gain": 1e300}, {"at": nan}, {"step": -1}, {"pids": (HUGE,)}]
    odd_reports: list[dict[str, Any]] = [
        {"at": nan}, {"at": inf}, {"step_seconds": 5e-324}, {"sync_seconds": nan}, {"samples": HUGE}, {"progress": nan},
        {"type": "a\0b"}, {"comm": "half \ud800"}, {"comm": "c" * 10**5}, {"num_slots": 2**40}, {"num_slots": 0},
        {"global_batch": 0},
    ]  # fmt: skip
    odd_commits: list[dict[str, Any]] = [
        {"progress": nan}, {"timings": {"first_step_at": 1e308}}, {"timings": {"save": inf}}, {"size_bytes": HUGE},
        {"notes": ("x" * 10**5,)}, {"uri": "another-job/lineage-0/step-0000000001-epoch-1-a"}, {"uri": "\0"},
        {"layout": Layout(data=HUGE)},
    ]  # fmt: skip
    calls: dict[str, Call] = {}
    for odd in odd_beats:
        calls[f"a heartbeat with {odd}"] = lambda trainer, odd=odd: trainer.heartbeat(replace(beat, **odd))
    for odd in odd_reports:
        report = an_observation(1, order, **odd)
        calls[f"an observation with {str(odd)[:60]}"] = lambda trainer, report=report: trainer.observe([report])
    for odd in odd_commits:
        commit = replace(_a_commit(order), **odd)
        calls[f"a commit with {str(odd)[:60]}"] = lambda trainer, commit=commit: trainer.commit(commit)
    calls["an exit of its own"] = lambda trainer: trainer.exited(ExitReport(kind=ExitKind.USER_ERROR))
    calls["a mark of no checkpoint"] = lambda trainer: trainer.mark_bad(HUGE, "\0")
    calls["a slot of no node"] = lambda trainer: trainer.release_slots([Slot("node-a", HUGE, "cpu")], order.epoch)
    return calls


def extreme_calls(order: LaunchOrder) -> dict[str, Call]:
    """At the ends of what is allowed: harmless."""
    beat = Heartbeat(step=0, samples=0, at=0.0, progress=2.0**53, gain=2.0**-30)
    extremes: list[dict[str, Any]] = [
        {"grad_sqr": 1e-300, "grad_var": 1e300}, {"grad_sqr": -1e160, "grad_var": 1e160, "loss": nan},
        {"step_seconds": 1e-9, "samples_per_second": 1e18, "global_batch": 2**30}, {"step_seconds": 1e9, "at": 1e11},
        {"samples": 2**53, "progress": 2.0**53, "gain": 2.0**30}, {"step_seconds": 0.0},
    ]  # fmt: skip
    calls: dict[str, Call] = {"the furthest heartbeat": lambda trainer: trainer.heartbeat(beat)}
    for number, extreme in enumerate(extremes):
        report: Observation = an_observation(2**30 + number, order, **extreme)
        calls[f"an observation with {extreme}"] = lambda trainer, report=report: trainer.observe([report])
    return calls


def _a_commit(order: LaunchOrder) -> Commit:
    uri = f"{order.job_id}/lineage-{order.lineage}/step-{10**9:010d}-epoch-{order.epoch}-0123456789ab"
    return Commit(
        step=10**9, samples=order.total_samples + 10**9, uri=uri, manifest_sha256="0" * 64, size_bytes=1,
        layout=Layout(), metrics={}, final=False,
    )  # fmt: skip


class HostileTrainer:
    """Runs in the processes of a group. What is answered as it must not be is in `wrong`."""

    def __init__(self, world: World, group: Group, rng: Random) -> None:
        self._world, self._group, self._rng = world, group, rng
        self.wrong: list[str] = []

    def run(self) -> None:
        order = self._group.order
        odd, extreme = odd_calls(order), extreme_calls(order)
        for _ in range(self._rng.randint(FEWEST, MOST)):
            self._world.hub.sleep(self._rng.uniform(0.2, 4.0))
            kind = self._rng.choice(("odd", "odd", "extreme", "old"))
            if kind == "odd":
                what = self._rng.choice(list(odd))
                self._must_refuse(what, odd[what])
            elif kind == "extreme":
                self._say(self._group.order.token, extreme[self._rng.choice(list(extreme))])
            else:
                self._commit_again()

    def _must_refuse(self, what: str, call: Call) -> None:
        answered, _ = self._say(self._group.order.token, call)
        if answered:
            self.wrong.append(f"{what} was taken from {self._group.order.job_id}")

    def _commit_again(self) -> None:
        """A commit of any group of the job, with the token of any: who made another one gets no order for it."""
        job_id = self._group.order.job_id
        said = [(group, token, commit) for group in self._world.launcher.known.values()
                for token, commit in group.said if group.order.job_id == job_id]  # fmt: skip
        if not said:
            return
        whose, token, _ = self._rng.choice(said)
        _, _, commit = self._rng.choice(said)
        answered, answer = self._say(token, lambda trainer: trainer.commit(commit))
        if answered and answer.order is not None and answer.order.origin_epoch != whose.origin:
            self.wrong.append(
                f"who committed in the processes of epoch {whose.origin} got the order of those of epoch "
                f"{answer.order.origin_epoch} by committing {commit.uri} again"
            )

    def _say(self, token: str, call: Call) -> tuple[bool, Any]:
        """Whether it was taken, and the answer. Where nobody answers it was not."""
        try:
            return True, call(self._world.connect_trainer(token))
        except InfrastructureError:
            return False, None
        except ElasticError:
            return False, None
