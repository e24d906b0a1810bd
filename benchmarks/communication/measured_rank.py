"""One rank of the benchmark: the same training under one method of exchange after another, timed and counted.

    python -m benchmarks.communication.measured_rank '{"rank": 0, "world": 2, "methods": ["ddp"], ...}'

An MLP 1024-4096-4096-1024 (25.2 million parameters, 101 MB of gradients) learns a fixed map from 32 samples a rank and
step, on one thread. Every method begins from the same weights and reads the same samples. The optimizer is SGD; of
those that exchange momenta it is Adam, past its warm-up. Rank 0 prints a line of JSON for each method.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from elastic_core.comm.algorithm import Exchange
from elastic_core.comm.algorithms import (
    WEIGHTS_TOO,
    averages,
    averaging_class,
    bucket_mib,
    create,
    leaves_layers_out,
    steps_weights,
)
from elastic_core.comm.tuning.auto_exchange import MOST_STEPS, MOST_STEPS_OF_AVERAGES, AutoExchange
from elastic_core.domain import AUTO

BATCH = 32  # of each rank
WIDTHS = (1024, 4096, 4096, 1024)
COMPUTE, DDP, DDP_BF16 = "no exchange", "ddp", "ddp bf16"
AUTO_AVERAGING = "auto (averaging)"  # that may choose averages of weights besides
_WARM_STEPS = 2  # DDP lays its buckets out after the first
_MOST_TRIED = MOST_STEPS + MOST_STEPS_OF_AVERAGES  # until `auto` has chosen
_LEAST_STEPS = 3
INTERVAL = 8  # steps between averages of weights
_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Medians over `steps`: seconds of rank 0's steps, bytes that its link carried out of it a step. Of a method that
    averages weights, or has chosen one that does, means over whole intervals: its steps differ."""

    method: str
    step_seconds: float
    sent_bytes: float
    steps: int
    losses: tuple[float, ...]  # over all ranks, at each step from the first
    chosen: str = ""  # by `auto`


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a rank is told. `seconds`: that the measured steps of a method may take; `steps`: at most so many."""

    rank: int
    world: int
    methods: tuple[str, ...]
    rendezvous: str  # a file that does not exist yet
    interface: str
    seconds: float
    steps: int


class Training:
    """A model under one method; `step` gives this rank's loss."""

    def __init__(self, method: str, part: Part) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(WIDTHS):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.model = nn.Sequential(*layers[:-1])
        self.map = torch.randn(WIDTHS[0], WIDTHS[-1]) / WIDTHS[0] ** 0.5
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
        self._samples = torch.Generator().manual_seed(1 + part.rank)
        self._weight = 1.0
        self._ddp: nn.Module = self.model
        self.algorithm: Exchange | None = None
        if averages(method):
            average = averaging_class(method)
            averaging = average(dist.new_group() if average.overlaps else None, INTERVAL)
            averaging.attach(self.model, self.optimizer)
            self.algorithm = averaging
        elif method != COMPUTE:
            partly = leaves_layers_out(method)
            ddp = DistributedDataParallel(
                self.model,
                gradient_as_bucket_view=True,
                find_unused_parameters=partly,
                bucket_cap_mb=bucket_mib(_algorithm(method)),
            )
            self._ddp = ddp
            self._attach(method, ddp, part.world)

    def step(self) -> float:
        inputs = torch.randn(BATCH, WIDTHS[0], generator=self._samples)
        loss = nn.functional.mse_loss(self._ddp(inputs), torch.tanh(inputs @ self.map))
        (loss * self._weight).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def close(self) -> None:
        if self.algorithm is not None:
            self.algorithm.close()

    def _attach(self, method: str, ddp: DistributedDataParallel, world: int) -> None:
        if method == DDP_BF16:
            ddp.register_comm_hook(None, bf16_compress_hook)
        elif method != DDP:
            own = dist.new_group() if leaves_layers_out(method) else None  # DDP talks at the same time
            among, beside = (WEIGHTS_TOO, dist.new_group()) if method == AUTO_AVERAGING else ((), None)
            exchange = create(
                _algorithm(method), _CPU, own, warmup_steps=_WARM_STEPS - 1, among=among, beside=beside
            )  # fmt: skip
            exchange.attach(ddp)
            if steps_weights(method):
                self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
            exchange.follow(self.optimizer)
            self.algorithm = exchange
            self._weight = 1 / world  # it sums, DDP's own takes the mean


def _algorithm(method: str) -> str:
    return AUTO if method == AUTO_AVERAGING else method


def measure(method: str, part: Part) -> Measured:
    training = Training(method, part)
    losses, seconds, sent = chosen(training), [], []
    kept = training.algorithm.in_force if isinstance(training.algorithm, AutoExchange) else ""
    in_intervals = averages(kept or method)
    tried = len(losses)
    planned = tried + _WARM_STEPS + part.steps
    while len(losses) < planned:
        dist.barrier()
        before, started = sent_bytes(part.interface), time.perf_counter()
        losses.append(training.step())
        took = time.perf_counter() - started
        dist.barrier()
        if len(losses) > tried + _WARM_STEPS:
            seconds.append(took)
            sent.append(sent_bytes(part.interface) - before)
        elif len(losses) == tried + _WARM_STEPS:
            fitting = int(_of_first(part.seconds / took))
            measured = max(_LEAST_STEPS, min(part.steps, fitting))
            planned = len(losses) + (-(-measured // INTERVAL) * INTERVAL if in_intervals else measured)
    training.close()
    typical = statistics.fmean if in_intervals else statistics.median
    return Measured(
        method=method,
        step_seconds=typical(seconds),
        sent_bytes=typical(sent),
        steps=len(seconds),
        losses=tuple(_mean(loss) for loss in losses),
        chosen=kept,
    )


def chosen(training: Training) -> list[float]:
    """The losses of the steps in which `auto` chooses, if that is the method."""
    losses: list[float] = []
    exchange = training.algorithm
    while isinstance(exchange, AutoExchange) and not exchange.chosen:
        if len(losses) == _MOST_TRIED:
            raise RuntimeError(f"auto has not chosen after {_MOST_TRIED} steps")
        started = time.perf_counter()
        losses.append(training.step())
        exchange.stepped(time.perf_counter() - started, exchange.take_wait_seconds())
    return losses


def sent_bytes(interface: str) -> int:
    return int(Path("/sys/class/net", interface, "statistics", "tx_bytes").read_text())


def _of_first(value: float) -> float:
    told = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(told, 0)
    return float(told)


def _mean(value: float) -> float:
    total: Tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def main(told: str) -> None:
    part = Part(**json.loads(told))
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = part.interface
    dist.init_process_group("gloo", init_method=f"file://{part.rendezvous}", rank=part.rank, world_size=part.world)
    for method in part.methods:
        measured = measure(method, part)
        if part.rank == 0:
            print(json.dumps(asdict(measured)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
