"""Real training of a tiny model whose every step lasts as long as a published profile says, on slots that are not here.

Processes, data order, gradient exchange, checkpoints, resizes, loss and gradient noise are real: the model predicts the
next byte of the Python standard library's sources. Only time is made: a step is padded by sleeping to what the kind of
job takes for that type of slot, that share of the batch, and those nodes. So one machine shows what scheduling does
with more accelerators than it has; it says nothing about hardware.

The profiles are the five kinds of `elastic_core.sim.workloads.generated_jobs` (compute-bound, exchange-bound, ...): a
step is fixed + per_sample * b on a slot plus a ring exchange (Saxena et al. 2020, section 3), with the types' speeds
stated there; types that are not stated are as fast as its reference. One entry point a kind, since jobs of one entry
point are taken to resemble each other. What is slept as exchange is slept by every rank in the exchange itself, where
the platform measures it (`comm.hooked.slower_link`): of gradients, on CPUs. Where weights are averaged
instead, none is slept.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from elastic_core.comm.hooked import slower_link
from elastic_core.domain import Allocation
from elastic_core.sim.ground_truth.physics import AnalyticPhysics
from elastic_core.sim.workloads.generated_jobs import KINDS, kind_physics
from elastic_core.train.entry import session_task
from elastic_core.train.session import Session
from examples.bytes_lm import read_sources

CONTEXT = 8  # bytes that the next one is predicted from
HELD_OUT = 2048  # samples
REMEMBERED = 8  # steps whose own cost is looked at


class PacedParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: float = Field(default=1.0, gt=0, description="every part of the kind's step times is so many times as long")
    compute: float = Field(default=1.0, gt=0, description="the same of the computing alone, without the exchange")
    samples: int = Field(default=8192, ge=64, le=200_000, description="samples of an epoch")
    width: int = Field(default=32, ge=4, le=1024, description="hidden units")
    learning_rate: float = Field(default=5e-3, gt=0)


def physics(kind: str, params: PacedParams) -> AnalyticPhysics:
    """How long steps of a kind last: what the pace keeps to, and what a simulation of such jobs takes for the truth."""
    return kind_physics(KINDS[kind], params.compute).slowed(params.size)


class Pace:
    """Sleeps until a micro-batch has lasted as long as the profile says.

    What this process's own work takes (reading, backward, the exchange that there is, optimizer) counts as part of the
    step: of its exchange first, then of its computing.
    """

    def __init__(
        self,
        physics: AnalyticPhysics,
        allocation: Allocation,
        rank: int,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._physics, self._clock, self._sleep = physics, clock, sleep
        self._kind = allocation.slots[rank].type
        self._nodes = tuple(Counter(slot.node for slot in allocation.slots).values())
        self._began = self._waited_at = self._stepped_at = clock()
        self._link_seconds = self._lingered = 0.0
        self._reading: deque[float] = deque(maxlen=REMEMBERED)
        self._stepping: deque[float] = deque(maxlen=REMEMBERED)

    def begin(self) -> None:
        """A micro-batch was read."""
        self._began = self._clock()
        self._reading.append(self._began - self._stepped_at)

    def wait(self, samples: int, *, completes_step: bool) -> None:
        """After the loss of a micro-batch of so many samples, before its backward."""
        whole, exchange = self._physics.seconds(self._kind, self._nodes, samples, 1)
        own, exchanged = self._own_cost(), exchange if completes_step else 0.0
        self._link_seconds = max(0.0, exchanged - own)
        due = self._began + whole - exchange - max(0.0, own - exchanged)
        self._sleep(max(0.0, due - self._clock()))
        self._waited_at = self._clock()

    def linger(self) -> None:
        """The exchange on the link, but for what it takes itself."""
        self._lingered = self._link_seconds
        self._sleep(self._lingered)

    def stepped(self) -> None:
        self._stepped_at = self._clock()
        self._stepping.append(self._stepped_at - self._waited_at - self._lingered)
        self._lingered = 0.0

    def _own_cost(self) -> float:
        """The least of the last steps: a checkpoint, or a rank that came late, is no part of a step."""
        return min(self._reading, default=0.0) + min(self._stepping, default=0.0)


class NextByte(nn.Module):
    """Bytes (batch, CONTEXT) to logits of the next one (batch, 256)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 8)
        self.hidden = nn.Linear(8 * CONTEXT, width)
        self.out = nn.Linear(width, 256)

    def forward(self, bytes_bt: Tensor) -> Tensor:
        logits: Tensor = self.out(torch.relu(self.hidden(self.embed(bytes_bt).flatten(1))))
        return logits


def model(params: Mapping[str, Any]) -> nn.Module:
    return NextByte(PacedParams.model_validate(params).width)


def dataset_samples(params: Mapping[str, Any]) -> int:
    return PacedParams.model_validate(params).samples


@cache
def windows(samples: int, *, held_out: bool) -> TensorDataset:
    """Sample i: bytes [i * (CONTEXT + 1), ...) of the sources, the last of them to be predicted."""
    length = samples * (CONTEXT + 1)
    text = read_sources(held_out=held_out)[:length]
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(samples, CONTEXT + 1)
    return TensorDataset(rows[:, :-1].contiguous(), rows[:, -1].contiguous())


def evaluate(model: nn.Module, _params: Mapping[str, Any]) -> Mapping[str, float]:
    inputs, targets = windows(HELD_OUT, held_out=True).tensors
    with torch.no_grad():
        return {"held_out_loss": nn.functional.cross_entropy(model(inputs), targets).item()}


def train(session: Session, kind: str) -> None:
    params = PacedParams.model_validate(session.params)
    network: nn.Module = NextByte(params.width)
    optimizer = torch.optim.AdamW(network.parameters(), lr=params.learning_rate)
    network, optimizer = session.prepare(network, optimizer, windows(params.samples, held_out=False))  # type: ignore[assignment]
    pace = Pace(physics(kind, params), session.allocation, session.rank)
    with slower_link(pace.linger):
        for inputs, targets in session.batches():
            pace.begin()
            loss = nn.functional.cross_entropy(network(inputs), targets)
            pace.wait(len(targets), completes_step=session.completes_step)
            session.step(loss)
            pace.stepped()


def _entry_point(kind: str) -> Callable[[Session], None]:
    def run(session: Session) -> None:
        train(session, kind)

    run.__name__ = kind.replace("-", "_")
    mark = session_task(
        dataset_samples=dataset_samples, metric="held_out_loss", params=PacedParams, model=model, evaluate=evaluate
    )
    return mark(run)


compute_bound = _entry_point("compute-bound")
exchange_bound = _entry_point("exchange-bound")
hardly_scaling = _entry_point("hardly-scaling")
noise_limited = _entry_point("noise-limited")
balanced = _entry_point("balanced")


ENTRY_POINTS: Mapping[str, Callable[[Session], None]] = {
    "compute-bound": compute_bound,
    "exchange-bound": exchange_bound,
    "hardly-scaling": hardly_scaling,
    "noise-limited": noise_limited,
    "balanced": balanced,
}


def entry_point(kind: str) -> str:
    """The name of a kind's entry point, as a job spec takes it. Raises `KeyError` for a kind that has none."""
    return f"{__name__}:{ENTRY_POINTS[kind].__name__}"
