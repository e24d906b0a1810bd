"""One rank of a run: a task of `examples` trained under one exchange, evaluated at equal numbers of samples.

    python -m benchmarks.convergence.trained_rank '{"rank": 0, "world": 4, "task": "digits", ...}'

Ordinary loops in plain torch: `attach` for what exchanges gradients or momenta, `comm.averaging` for weights. Ranks
share each global batch evenly; its order is the seed's, the same under every exchange. Rates are the task's own, with
its schedule over the samples that the exact run gets, and no exchange has any tuned to it. Before an evaluation those
that average weights settle on one model, which they do before every checkpoint of a job. Rank 0 prints the curve as
JSON: samples, seconds of training so far, and held-out loss.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

from elastic_core.comm import attach
from elastic_core.comm.algorithm import Exchange
from elastic_core.comm.algorithms import averages, averaging_class, leaves_layers_out
from elastic_core.comm.averaging.weight_averaging import WeightAveraging
from elastic_core.train.task import Task
from examples.bytes_lm import BytesLM
from examples.digits import Digits

TASKS: dict[str, type[Task]] = {"digits": Digits, "bytes_lm": BytesLM}
INTERVAL = 8  # steps between averages of weights


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a rank is told. `samples`: those of an exact run; `most`: that this one may take."""

    rank: int
    world: int
    rendezvous: str
    task: str
    algorithm: str
    seed: int
    batch: int
    samples: int
    most: int
    evaluate_every: int  # steps


def train(part: Part) -> Iterator[tuple[int, float, float]]:
    """(samples, seconds, held-out loss) at each evaluation, on every rank alike."""
    task = TASKS[part.task](TASKS[part.task].Params())
    torch.manual_seed(part.seed)
    model = task.model()
    optimizer = task.optimizer(model)
    trained, exchange = exchanging(model, optimizer, part)
    rates = [group["lr"] for group in optimizer.param_groups]
    samples: Any = task.dataset()
    seconds = 0.0
    for step, indices in enumerate(batches(len(samples), part)):
        if step and step % part.evaluate_every == 0:
            if isinstance(exchange, WeightAveraging):
                exchange.settle()
            yield step * part.batch, seconds, held_out(task, model)
        if step * part.batch >= part.most:
            break
        started = time.perf_counter()
        progress = min(1.0, step * part.batch / part.samples)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * task.learning_rate_factor(progress)
        one_step(task, trained, optimizer, default_collate([samples[i] for i in indices]))
        seconds += time.perf_counter() - started
    exchange.close()


def exchanging(model: nn.Module, optimizer: torch.optim.Optimizer, part: Part) -> tuple[nn.Module, Exchange]:
    """What is called for the loss, and the exchange."""
    if averages(part.algorithm):
        algorithm = averaging_class(part.algorithm)
        averaging = algorithm(dist.new_group() if algorithm.overlaps else None, INTERVAL)
        averaging.attach(model, optimizer)
        return model, averaging
    ddp = DistributedDataParallel(model, find_unused_parameters=leaves_layers_out(part.algorithm))
    warmup = max(1, part.samples // part.batch // 5)
    return ddp, attach(ddp, optimizer, part.algorithm, warmup_steps=warmup)


def one_step(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    loss = task.loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def batches(count: int, part: Part) -> Iterator[list[int]]:
    """This rank's samples of each global batch, for ever: an order of the data set after another."""
    generator = torch.Generator().manual_seed(1000 + part.seed)
    share, waiting = part.batch // part.world, torch.empty(0, dtype=torch.int64)
    while True:
        while len(waiting) < part.batch:
            waiting = torch.cat([waiting, torch.randperm(count, generator=generator)])
        whole, waiting = waiting[: part.batch], waiting[part.batch :]
        yield whole[part.rank * share : (part.rank + 1) * share].tolist()


def held_out(task: Task, model: nn.Module) -> float:
    """Rank 0's; the others wait for it."""
    loss: Tensor = torch.zeros(1, dtype=torch.float64)
    if dist.get_rank() == 0:
        model.eval()
        loss[0] = task.evaluate(model)["held_out_loss"]
        model.train()
    dist.broadcast(loss, 0)
    return float(loss)


def main(told: str) -> None:
    part = Part(**json.loads(told))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{part.rendezvous}", rank=part.rank, world_size=part.world)
    curve = list(train(part))
    if part.rank == 0:
        print(json.dumps(curve), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
