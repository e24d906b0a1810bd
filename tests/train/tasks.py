"""Small things to train, for tests. Recording goes to the folder named in the parameters."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from elastic_core.state.layout.placements import local_of
from elastic_core.train.entry import session_task
from elastic_core.train.layouts import Declared
from elastic_core.train.session import Session
from elastic_core.train.task import Task
from examples.bytes_lm import BytesLM
from examples.ctr import CTR, CTRParams


def data(rows: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(rows, 12, generator=generator)
    y = x[:, :1] * 2 - x[:, 1:2] + 0.1 * torch.randn(rows, 1, generator=generator)
    return TensorDataset(x, y)


class Counted(Dataset[Any]):
    """Every sample is its own index, so a model can say what it has seen."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index)])


class Network(nn.Module):
    """Made in another order than used: DDP's second layout of its buckets differs from its first."""

    def __init__(self, dropout: float, batch_norm: bool) -> None:
        super().__init__()
        self.middle = nn.Linear(160, 160)  # exchanged in chunks, what is small as a whole
        self.last = nn.Linear(160, 1)
        self.first = nn.Linear(12, 160)
        self.norm = nn.BatchNorm1d(160) if batch_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(torch.relu(self.norm(self.first(x))))
        y: Tensor = self.last(torch.tanh(self.middle(x)))
        return y


def network(dropout: float = 0.2, batch_norm: bool = False) -> nn.Module:
    return Network(dropout, batch_norm)


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rows: int = 96
    dropout: float = 0.2
    learning_rate: float = 1e-3


class Regression(Task):
    Params = Params

    def model(self) -> nn.Module:
        return network(self.params.dropout)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.params.learning_rate)

    def dataset(self) -> TensorDataset:
        return data(self.params.rows)

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        x, y = data(8).tensors
        return {"held_out": nn.functional.mse_loss(model(x), y).item()}

    def evaluate_each(self, model: nn.Module) -> Tensor:
        x, y = data(8).tensors
        return (model(x) - y).square().mean(1)


class Drawn(Regression):
    """Its data comes from torch's own generator, after the model."""

    def dataset(self) -> TensorDataset:
        return TensorDataset(torch.randn(self.params.rows, 12), torch.randn(self.params.rows, 1))


class Fading(Regression):
    """Its learning rate halves over the job."""

    def learning_rate_factor(self, progress: float) -> float:
        return 1.0 - progress / 2


@session_task(dataset_samples=lambda params: params["rows"])
def recorded(session: Session) -> None:
    """Writes `<step> <loss in hex>` a line from every rank; does what the parameters ask at a step."""
    params = session.params
    model = network(params.get("dropout", 0.2), params.get("batch_norm", False))
    if params.get("same_model"):
        model = _same_model_again(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20) if params.get("scheduler") else None
    clip = params.get("clip")
    model, optimizer = session.prepare(model, optimizer, data(params["rows"]), scheduler, clip_grad_norm=clip)
    folder = Path(params["folder"])
    with (folder / f"losses-rank{session.rank}").open("a") as file:
        for x, y in session.batches():
            before = session.num_steps
            session.step(nn.functional.mse_loss(model(x), y))
            if session.num_steps > before:
                file.write(f"{session.num_steps} {session.last_loss.hex()}\n")
                file.flush()
                act(params)
    buffers = [buffer.tolist() for buffer in model.buffers()]
    (folder / f"buffers-rank{session.rank}").write_text(json.dumps(buffers))
    if params.get("spoils_weights"):
        _zero(model)


_models: list[nn.Module] = []


def _same_model_again(model: nn.Module) -> nn.Module:
    """The one that this process had first, all zeros."""
    _models.append(model)
    if len(_models) > 1:
        _zero(_models[0])
    return _models[0]


def _zero(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()


@session_task(dataset_samples=lambda params: params["rows"])
def collecting(session: Session) -> None:
    """Writes every index that reaches the loss, with the step it was read for."""
    model = nn.Linear(1, 1)
    model, _ = session.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-9), Counted(session.params["rows"]))
    with (Path(session.params["folder"]) / f"seen-rank{session.rank}").open("a") as file:
        for batch in session.batches():
            file.write(json.dumps([session.num_steps, batch.flatten().int().tolist()]) + "\n")
            file.flush()
            session.step(model(batch).mean())


@session_task(dataset_samples=32)
def placed(session: Session) -> None:
    """Logs what it is told of where it runs; writes of every batch its size and whether it completes a step."""
    model = network()
    model, _ = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data(32))
    with (Path(session.params["folder"]) / "batches").open("a") as file:
        assert not session.completes_step, "no batch is at hand yet"
        for x, y in session.batches():
            slot, held = session.slot, session.allocation
            seen = [slot.node, slot.type, held.num_slots, held.global_batch, len(x), session.completes_step]
            file.write(json.dumps(seen) + "\n")
            session.step(nn.functional.mse_loss(model(x), y))
            assert not session.completes_step, "its batch was learnt from"


@session_task(dataset_samples=32)
def broken(session: Session) -> None:
    model = network()
    model, _ = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data(32))
    for x, y in session.batches():
        if session.num_steps == 2 and session.rank == session.params.get("rank", 0):
            raise ZeroDivisionError("one over zero")
        session.step(nn.functional.mse_loss(model(x), y))


@session_task(dataset_samples=32)
def leaves_early(session: Session) -> None:
    model = network()
    model, _ = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data(32))
    for x, y in session.batches():
        session.step(nn.functional.mse_loss(model(x), y))
        break


class BytesIn64(BytesLM):
    """The example transformer, small and in double precision."""

    def model(self) -> nn.Module:
        return super().model().double()


class UnmeasuredBytes(BytesLM):
    """The example without a look at held-out data, which would take longer than its steps. Its weights need not be
    drawn again."""

    evaluate = Task.evaluate


class Located(UnmeasuredBytes):
    """Each rank logs at each step where in memory its weights and the optimizer's state lie: `lies in <process>
    <address and size of each>`."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self._optimizer = super().optimizer(model)
        return self._optimizer

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        print("lies in", os.getpid(), json.dumps(self._places()), flush=True)
        return super().loss(model, batch)

    def _places(self) -> list[tuple[int, int]]:
        weights = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        states = [value for weight in weights for value in self._optimizer.state[weight].values()]
        return [(local_of(tensor).data_ptr(), local_of(tensor).nbytes) for tensor in (*weights, *states)]


@session_task(dataset_samples=lambda params: len(BytesLM(_bytes(params)).dataset()), shardable=True)
def bytes_in_64(session: Session) -> None:
    """Trains `BytesIn64` in any layout; writes `<step> <loss in hex>` a line from every rank."""
    _train_bytes(session, BytesIn64(_bytes(session.params)))


@session_task(dataset_samples=lambda params: len(BytesLM(_bytes(params)).dataset()), shardable=True)
def bytes_in_32(session: Session) -> None:
    """The same in single precision."""
    _train_bytes(session, BytesLM(_bytes(session.params)))


def _train_bytes(session: Session, task: BytesLM) -> None:
    model = task.model()
    session.prepare(
        model,
        task.optimizer(model),
        task.dataset(),
        evaluate=task.evaluate if session.params.get("evaluate") else None,
        clip_grad_norm=session.params.get("clip"),
        declared=Declared(task.tensor_plan, task.pipeline_units),
    )
    told = session.num_steps
    with (Path(session.params["folder"]) / f"losses-rank{session.rank}").open("a") as file:

        def tell() -> None:
            nonlocal told
            if session.num_steps > told:
                told = session.num_steps
                file.write(f"{told} {session.last_loss.hex()}\n")
                file.flush()

        def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
            tell()
            return task.loss(model, batch)

        session.train(loss)
        tell()


@session_task(
    dataset_samples=lambda params: _ctr(params).params.samples,
    model=lambda params: _ctr(params).model(),
    layers=lambda params, model: _ctr(params).layers(model),
)
def clicks(session: Session) -> None:
    """Trains the click model in any stages, or in none; writes `<step> <loss in hex>` a line from every rank."""
    task = _ctr(session.params)
    model = task.model()
    session.prepare(
        model,
        task.optimizer(model),
        task.dataset(),
        evaluate=task.evaluate,
        clip_grad_norm=session.params.get("clip"),
        declared=Declared(layers=task.layers, late_embedding_updates=session.params.get("late", False)),
    )
    told = session.num_steps
    with (Path(session.params["folder"]) / f"losses-rank{session.rank}").open("a") as file:

        def tell() -> None:
            nonlocal told
            if session.num_steps > told:
                told = session.num_steps
                file.write(f"{told} {session.last_loss.hex()}\n")
                file.flush()

        def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
            tell()
            act(session.params)
            return task.loss(model, batch)

        session.train(loss)
        tell()


def _ctr(params: Mapping[str, Any]) -> CTR:
    return CTR(CTRParams(**{key: params[key] for key in CTRParams.model_fields if key in params}))


def _bytes(params: Mapping[str, Any]) -> BaseModel:
    return BytesLM.Params(**{key: params[key] for key in BytesLM.Params.model_fields if key in params})


def act(params: dict[str, Any]) -> None:
    time.sleep(params.get("sleep", 0.0))


def _environment(_params: dict[str, Any]) -> int:
    ended_first = Path("/proc/self/oom_score_adj").read_text().strip()
    raise RuntimeError(" ".join(f"{name}={value}" for name, value in {"OOM": ended_first, **os.environ}.items()))


@session_task(dataset_samples=_environment)
def environment(session: Session) -> None: ...


@session_task(dataset_samples=64)
def typed(session: Session) -> None:
    """Says with which element type the loop's forward pass works, and how many steps its work is."""
    model = nn.Linear(12, 1)
    model, _ = session.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1.0), data(64), clip_grad_norm=session.params.get("clip")
    )
    for x, y in session.batches():
        before = [parameter.detach().clone() for parameter in model.parameters()]
        out = model(x)
        session.log(half=float(out.dtype == torch.bfloat16), base_steps=session.base_steps)
        session.step(nn.functional.mse_loss(out, y))
        moved = (
            sum(float((a - b.detach()).square().sum()) for a, b in zip(before, model.parameters(), strict=True)) ** 0.5
        )
        session.log(moved=moved)


class Endless(Dataset[Any]):
    def __getitem__(self, index: int) -> Tensor:
        return torch.zeros(12)


@session_task(dataset_samples=64)
def misuse(session: Session) -> None:
    how = session.params["how"]
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if how == "unprepared":
        session.step(torch.zeros(()))
    model, _ = session.prepare(model, optimizer, Endless() if how == "endless" else data(64))
    if how == "prepares_twice":
        session.prepare(model, optimizer, data(64))
    for x, y in session.batches():
        loss = nn.functional.mse_loss(model(x), y)
        if how == "steps_twice":
            session.step(loss)
            session.step(loss)


def marked(rows: int) -> TensorDataset:
    """Rows of six values of which some count, in some rows none: what they come to follows how many."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(rows, 6, 4, generator=generator)
    counts = torch.randint(0, 7, (rows, 1), generator=generator)
    return TensorDataset(x, x[..., 0] + counts, torch.arange(6) < counts)


@session_task()
def padded(session: Session) -> None:
    """Its loss is a mean over the values that count."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = marked(1497)
    model, _ = session.prepare(model, optimizer, data, count_items=lambda batch: int(batch[2].sum()))
    for x, y, counts in session.batches():
        squares = (model(x).squeeze(-1) - y).square()
        session.step(squares[counts].sum() / max(1, int(counts.sum())))


class _Times(torch.autograd.Function):
    """What it is given, whose gradient is multiplied."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.saved_tensors[0], None


class GrowingNetwork(nn.Module):
    """Its gradients grow with every pass, its outputs do not: Adam steps the same, and half precision overflows."""

    growth: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = network(0.0)
        self.register_buffer("growth", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.growth.mul_(1.35)
        times: Tensor = _Times.apply(self.inner(x), self.growth.clone())
        return times


class Growing(Regression):
    def model(self) -> nn.Module:
        return GrowingNetwork()


class Loudness(nn.Module):
    """Its one parameter changes nothing, and has a gradient of ten million."""

    def __init__(self) -> None:
        super().__init__()
        self.loud = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        loud = 1e7 * self.loud
        return x + (loud - loud.detach())


class LoudNetwork(nn.Sequential):
    """In each of two ranks' chunks of its gradients lies a loud one, beside which the others are lost in bytes."""

    def __init__(self) -> None:
        super().__init__(Loudness(), network(0.0), Loudness())


class Loud(Regression):
    def model(self) -> nn.Module:
        return LoudNetwork()
