"""`Session`: what an ordinary PyTorch loop needs to become elastic, in five lines.

    def train(session):
        model, optimizer = session.prepare(model, optimizer, dataset)
        for batch in session.batches():
            loss = loss_function(model, batch)
            session.step(loss)

The loop sees micro-batches and never where one segment ends and the next begins: `batches` restores, saves at
intervals and boundaries, goes straight on when the lease passes on, and ends when this process should.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from elastic_core.errors import UserError
from elastic_core.train.audit import ReadLog
from elastic_core.train.committing import Committer
from elastic_core.train.data import Collate, DataPlan, MicroBatch, Reader, StepPlan, plan_step
from elastic_core.train.evaluating import Evaluate, measured
from elastic_core.train.gradients import Gradients
from elastic_core.train.noise import NoiseState
from elastic_core.train.rates import Rates
from elastic_core.train.restore import Restored, read_weights, restore
from elastic_core.train.saving import Content, Saver
from elastic_core.train.segments import Segments, Surroundings
from elastic_core.train.stepping import Stepper
from elastic_core.train.training_state import (
    TrainingState,
    load_weights,
    rank_tensors,
    restore_rank,
    seed_everything,
)

_QUICK_SECONDS = 1.0  # of evaluation that an interval checkpoint may take


@dataclass
class _Prepared:
    """What `prepare` made."""

    state: TrainingState
    gradients: Gradients
    stepper: Stepper
    reader: Reader
    plan: DataPlan
    reads: ReadLog
    restored: Restored
    evaluate: Evaluate | None
    evaluate_seconds: float = 0.0  # that it took last time


@dataclass
class _Current:
    """The step under way; `micro` is the micro-batch that waits for its loss."""

    plan: StepPlan
    started: float
    micro: MicroBatch | None = None


class Session:
    """One rank's part in training one job, over as many segments as its process lives."""

    def __init__(self, around: Surroundings) -> None:
        """Seeds torch, NumPy and Python from the job's seed: models made from now on are alike on every rank."""
        self._around = around
        self._group = around.group
        self._segments = Segments(around)
        self._prepared: _Prepared | None = None
        self._current: _Current | None = None
        self._spec = around.order.spec
        self._evaluate: Evaluate | None = None
        seed_everything(self._spec.seed)

    @property
    def params(self) -> Mapping[str, Any]:
        """The spec's task parameters."""
        return self._spec.params

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def world_size(self) -> int:
        return self._group.world

    @property
    def device(self) -> torch.device:
        return self._group.device

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the job so far."""
        return self._segments.step

    @property
    def num_samples(self) -> int:
        """Samples of the job's work so far, over all passes of the data set."""
        return self._segments.samples

    @property
    def progress(self) -> float:
        """Part of the job's work that is done, in [0, 1]."""
        return self._segments.progress

    @property
    def last_loss(self) -> float:
        """Mean loss over the last step's whole global batch, the same on every rank."""
        return self._segments.loss

    @property
    def over(self) -> bool:
        """`batches` has ended: training may return."""
        return self._segments.over

    def log(self, **metrics: float) -> None:
        """Report metrics with the next observation and checkpoint. Rank 0's count, the others' are ignored."""
        self._segments.log({name: float(value) for name, value in metrics.items()})

    def evaluate_with(self, evaluate: Evaluate | None) -> None:
        """How `prepare` evaluates when it is not told: what an entry point says besides its loop."""
        self._evaluate = evaluate

    def prepare(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        dataset: Dataset[Any],
        scheduler: Any | None = None,
        collate: Collate | None = None,
        *,
        learning_rate_factor: Callable[[float], float] = lambda _progress: 1.0,
        evaluate: Evaluate | None = None,
        clip_grad_norm: float | None = None,
        find_unused_parameters: bool = False,
    ) -> tuple[nn.Module, Optimizer]:
        """Restore the job's state into model and optimizer, and make them data-parallel. Call it once.

        Returns the model to call in the loop and the optimizer (which `step` steps). `dataset` is map-style and
        gives the same sample for the same index on every rank. `scheduler`: a torch scheduler made on `optimizer`,
        stepped once an optimizer step. `collate`: list of samples to a batch. `learning_rate_factor`: schedule by
        progress in [0, 1], where there is no scheduler. `evaluate`: metrics of the plain model on held-out data, for
        checkpoints. `clip_grad_norm`: greatest norm of a gradient. `find_unused_parameters`: as in DDP. Raises
        `UserError` for what cannot be trained.
        """
        if self._prepared is not None:
            raise UserError("session.prepare was called twice; call it once, before the loop.")
        started = time.perf_counter()
        around, spec, order = self._around, self._spec, self._segments.order
        _check_dataset(dataset, order.facts.dataset_samples)
        model.to(self.device)
        state = TrainingState(model, optimizer, scheduler, NoiseState())
        rates = Rates(optimizer, scheduler, learning_rate_factor, spec.batch)
        restored = self._restore(state)
        rates.restored()
        gradients = Gradients(model, self._group, order.allocation.comm, find_unused_parameters)
        reads = ReadLog(keep_indices=spec.audit == "full")
        committer = Committer(around.heart, around.wishes) if around.heart is not None else None
        self._segments.attach(Saver(self._group, around.store, reads, committer), committer)
        self._prepared = _Prepared(
            state=state,
            gradients=gradients,
            stepper=Stepper(self._group, spec, state, gradients, rates, clip_grad_norm),
            reader=Reader(dataset, collate, self.device),
            plan=DataPlan(spec.seed, order.facts.dataset_samples, order.total_samples, spec.batch.max_per_slot),
            reads=reads,
            restored=restored,
            evaluate=evaluate or self._evaluate,
        )
        self._segments.time("restore", time.perf_counter() - started)
        return gradients.wrapped, optimizer

    def batches(self) -> Iterator[Any]:
        """Micro-batches until this process should end. After each, call `step` with its mean loss."""
        ready = self._ready("session.batches")
        self._restore_randomness(ready)
        self._segments.begin()
        while not self._segments.over:
            if self._segments.progress < 1.0:
                yield from self._micro_batches(ready)
            self._segments.proceed(self._describe)

    def step(self, loss: Tensor) -> None:
        """Learn from the last batch: `loss` is its mean loss, a scalar. Steps the optimizer when a step is complete."""
        ready, current = self._ready("session.step"), self._current
        if current is None or current.micro is None:
            raise UserError("session.step(loss) was called twice for one batch, or outside the loop over batches().")
        micro, current.micro = current.micro, None
        segments = self._segments
        with torch.autocast(self.device.type, enabled=False):
            ready.gradients.backward(loss, micro)
            if micro.last:
                segments.stepped(
                    ready.stepper.finish(
                        current.plan, segments.order.allocation, segments.progress, segments.outside(), current.started
                    )
                )

    def close(self) -> None:
        if self._prepared is not None:
            self._prepared.gradients.close()

    def _ready(self, what: str) -> _Prepared:
        if self._prepared is None:
            raise UserError(f"{what} was called before session.prepare(model, optimizer, dataset).")
        return self._prepared

    def _micro_batches(self, ready: _Prepared) -> Iterator[Any]:
        """The batches of one step on this rank."""
        segments = self._segments
        batch = segments.order.allocation.global_batch
        self._current = current = _Current(
            plan_step(ready.plan, segments.samples, batch, self.rank, self.world_size), time.perf_counter()
        )
        ready.stepper.starts(segments.step)
        for micro in current.plan.micro:
            current.micro = micro
            samples = ready.reader.read(micro.indices)
            for epoch, indices in micro.reads(ready.plan.dataset_samples):
                ready.reads.record(epoch, indices)
            ready.gradients.expect(micro)
            with self._autocast():
                yield samples
            if current.micro is not None:
                raise UserError(
                    "The loop asked session.batches() for the next batch without calling session.step(loss) for the "
                    "last one. Call it exactly once for every batch."
                )

    def _restore(self, state: TrainingState) -> Restored:
        heart, store, order = self._around.heart, self._around.store, self._segments.order
        mark_bad = heart.trainer.mark_bad if heart is not None else None
        restored = restore(order.restore.candidates, store, self._group, mark_bad)
        if restored.record is not None:
            state.load(restored.tensors, restored.scalars)
            self._segments.start_at(restored.record.step, restored.record.samples)
        elif order.warm_start is not None:
            load_weights(state.model, read_weights(store, order.warm_start))
        return restored

    def _restore_randomness(self, ready: _Prepared) -> None:
        """At the last moment, so that nothing between `prepare` and the loop can shift it."""
        restored, comm = ready.restored, ready.gradients.comm
        if restored.record is None or not restore_rank(
            restored.tensors, restored.scalars["world"], self.rank, self.world_size, comm
        ):
            seed_everything(self._spec.seed, self._segments.samples, self.rank)
        ready.restored = Restored(None, {}, {}, restored.seconds)  # lets go of the tensors

    def _describe(self, final: bool) -> Content:
        ready, segments = self._ready("saving"), self._segments
        first = self.rank == 0
        metrics = self._evaluated(ready, final) if first else {}
        return Content(
            step=segments.step,
            samples=segments.samples,
            shared=ready.state.tensors(),
            own=rank_tensors(self.rank, ready.gradients.comm),
            scalars=ready.state.scalars(self.world_size) if first else {},
            metrics={**segments.metrics(), **metrics},
            timings=segments.timings,
        )

    def _evaluated(self, ready: _Prepared, final: bool) -> dict[str, float]:
        """Held-out metrics: at every boundary, and with interval checkpoints as long as that is quick."""
        if ready.evaluate is None or not (final or ready.evaluate_seconds < _QUICK_SECONDS):
            return {}
        started = time.perf_counter()
        metrics = measured(ready.evaluate, ready.state.model)
        ready.evaluate_seconds = time.perf_counter() - started
        self._segments.time("evaluate", ready.evaluate_seconds)
        self.log(**metrics)
        return metrics

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._spec.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()


def _check_dataset(dataset: Dataset[Any], num_samples: int) -> None:
    try:
        found = len(dataset)  # type: ignore[arg-type]
    except TypeError as error:
        raise UserError(
            f"The data set, a {type(dataset).__name__}, has no length. Give a map-style one, with len() and [index]."
        ) from error
    if found != num_samples:
        raise UserError(
            f"The data set has {found} samples here, but had {num_samples} when the job was submitted. The order of "
            f"the data depends on it: submit a new job for changed data."
        )
