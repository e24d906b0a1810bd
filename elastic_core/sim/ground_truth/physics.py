"""What really happens to a simulated job: step times, gradient statistics, restart times. Policies never see this.

Work is counted in samples at the base batch ("scale-invariant" samples, AdaScale): a step at batch B with gain g does
g x base batch of it. Where every sample counts the same whatever the batch, the gain is B / base and work is samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from elastic_core.errors import UserError

Nodes = tuple[int, ...]  # slots used on each node in turn, no zeros


class Physics(Protocol):
    """The truth about one kind of job. It never changes: what was asked once may be remembered."""

    @property
    def base_batch(self) -> int:
        """Samples of the batch that work is counted at."""

    @property
    def rescale_seconds(self) -> float:
        """Without training after each change of its slots, the first start included."""

    def __hash__(self) -> int: ...

    @property
    def epoch_ends(self) -> Sequence[float]:
        """Work done at the end of each epoch, ascending; the last one is all of it."""

    def max_local(self, kind: str, nodes: Nodes) -> int:
        """Samples that fit one slot of this type at once."""

    def seconds(self, kind: str, nodes: Nodes, local: int, accumulation: int) -> tuple[float, float]:
        """(one optimiser step of `accumulation` micro-batches of `local` samples a slot, the synchronisation in it)."""

    def gradient(self, batch: int, epoch: int) -> tuple[float, float] | None:
        """(|E g|^2, tr(cov g) / base batch) of an epoch at a batch; None where every sample counts the same."""


def gain(physics: Physics, batch: int, epoch: int) -> float:
    """Progress of one step at `batch`, in steps at the base batch."""
    scale = batch / physics.base_batch
    statistics = physics.gradient(batch, epoch)
    if statistics is None:
        return scale
    sqr, var = statistics
    return (var + sqr) / (var / scale + sqr)


@dataclass(frozen=True)
class AnalyticPhysics:
    """A job given by formulas: Saxena et al.'s t_proc(b) = fixed + per_sample * b on a slot, and t_comm by slots.

    The exchange is a ring: (k - 1) / k of `exchange_seconds`, plus `latency_seconds` a hop, `node_factor` times that
    when it leaves a node. `speed` gives each type's speed relative to the one the times were taken on.
    """

    base_batch: int
    work: float
    fixed_seconds: float
    per_sample_seconds: float
    exchange_seconds: float
    latency_seconds: float = 0.0
    node_factor: float = 1.0
    local_limit: int = 10**9
    rescale_seconds: float = 10.0
    speed: tuple[tuple[str, float], ...] = ()
    noise_scale: float | None = None  # in samples; None: every sample counts the same

    @property
    def epoch_ends(self) -> Sequence[float]:
        return (self.work,)

    def slowed(self, factor: float) -> AnalyticPhysics:
        """The same job with every part of its step times `factor` as long: a larger model, whose work is the same."""
        return replace(
            self,
            fixed_seconds=factor * self.fixed_seconds,
            per_sample_seconds=factor * self.per_sample_seconds,
            exchange_seconds=factor * self.exchange_seconds,
            latency_seconds=factor * self.latency_seconds,
        )

    def max_local(self, kind: str, nodes: Nodes) -> int:  # noqa: ARG002 - the same everywhere
        return self.local_limit

    def seconds(self, kind: str, nodes: Nodes, local: int, accumulation: int) -> tuple[float, float]:
        slots = sum(nodes)
        compute = (self.fixed_seconds + self.per_sample_seconds * local) / dict(self.speed).get(kind, 1.0)
        ring = self.exchange_seconds * (slots - 1) / slots + self.latency_seconds * (slots - 1)
        sync = ring * (self.node_factor if len(nodes) > 1 else 1.0)
        return accumulation * compute + sync, sync

    def gradient(self, batch: int, epoch: int) -> tuple[float, float] | None:  # noqa: ARG002 - constant
        return None if self.noise_scale is None else (1.0, self.noise_scale / self.base_batch)


@dataclass(frozen=True, slots=True)
class Split:
    """How a global batch is run: `accumulation` micro-batches of `local` samples on each slot."""

    local: int
    accumulation: int
    batch: int  # samples of the whole step, as really run


def split(batch: int, slots: int, max_local: int, max_batch: int) -> Split:
    """As few micro-batches as fit, all of one size; never above the largest batch."""
    if batch < slots:
        raise UserError(f"a global batch of {batch} on {slots} slots gives some slots no sample")
    share = min(-(-batch // slots), max(1, max_batch // slots))
    accumulation = -(-share // max_local)
    local = min(-(-share // accumulation), max(1, max_batch // (slots * accumulation)))
    return Split(local, accumulation, local * accumulation * slots)
