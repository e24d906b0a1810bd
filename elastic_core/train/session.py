"""`Session`: what an ordinary PyTorch loop needs to become elastic, in five lines.

    def train(session):
        model, optimizer = session.prepare(model, optimizer, dataset)
        for batch in session.batches():
            loss = loss_function(model, batch)
            session.step(loss)

The loop sees micro-batches and never where one segment ends and the next begins: `batches` restores, saves at
intervals and boundaries, goes straight on when the lease passes on with the same slots, and ends when this process
should, or is to begin anew with other ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from elastic_core.control.contract import Commit, LaunchOrder
from elastic_core.errors import UserError
from elastic_core.state.order import rank_share
from elastic_core.train.audit import ReadLog
from elastic_core.train.blocks import BlockDataset
from elastic_core.train.committing import Committer
from elastic_core.train.data import Collate, DataPlan, MicroBatch, Reader, StepPlan, plan_step
from elastic_core.train.data_state import DataState, check_resumed
from elastic_core.train.evaluating import Evaluate, measured
from elastic_core.train.gradients import Gradients
from elastic_core.train.layouts import UNCUT, Declared
from elastic_core.train.noise import NoiseState
from elastic_core.train.places import Places
from elastic_core.train.rates import Rates
from elastic_core.train.restore import Restored, read_weights, restore, warm_start
from elastic_core.train.saving import Content, Saver
from elastic_core.train.segments import Segments, Surroundings
from elastic_core.train.stepping import Stepper
from elastic_core.train.training_state import (
    TrainingState,
    rank_tensors,
    restore_rank,
    seed_everything,
)

if TYPE_CHECKING:  # at run time where a layout needs them: they load torch's parallel libraries
    from elastic_core.train.cut_gradients import CutGradients
    from elastic_core.train.cutting import Cut
    from elastic_core.train.pipe import Loss, Pipe

_QUICK_SECONDS = 1.0  # of evaluation that an interval checkpoint may take


@dataclass
class _Prepared:
    """What `prepare` made."""

    state: TrainingState
    gradients: Gradients | CutGradients
    stepper: Stepper
    reader: Reader
    plan: DataPlan
    reads: ReadLog
    restored: Restored
    evaluate: Evaluate | None
    evaluate_seconds: float = 0.0  # that it took last time
    cut: Cut | None = None  # None: every rank holds the whole model


@dataclass
class _Current:
    """The step under way; `micro` is the micro-batch that waits for its loss."""

    plan: StepPlan
    started: float
    micro: MicroBatch | None = None


class Session:
    """One rank's part in training one job, over the segments in which its group stays as it is."""

    def __init__(self, around: Surroundings) -> None:
        """Seeds torch, NumPy and Python from the job's seed: models made from now on are alike on every rank."""
        self._around = around
        self._group = around.group
        self._segments = Segments(around)
        self._places = Places(around.group, around.order.allocation.layout)
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

    @property
    def anew(self) -> LaunchOrder | None:
        """The next segment's order, where the same job is to begin again in this process, with other ranks."""
        return self._segments.anew

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
        declared: Declared = UNCUT,
    ) -> tuple[nn.Module, Optimizer]:
        """Restore the job's state into model and optimizer, and make them parallel as the layout says. Call it once.

        Returns the model to call in the loop and the optimizer (which `step` steps). `dataset` is map-style and
        gives the same sample for the same index on every rank. `scheduler`: a torch scheduler made on `optimizer`,
        stepped once an optimizer step. `collate`: list of samples to a batch. `learning_rate_factor`: schedule by
        progress in [0, 1], where there is no scheduler. `evaluate`: metrics of the plain model on held-out data, for
        checkpoints. `clip_grad_norm`: greatest norm of a gradient. `find_unused_parameters`: as in DDP. `declared`: how
        the model may be cut. Raises `UserError` for what cannot be trained.
        """
        if self._prepared is not None:
            raise UserError("session.prepare was called twice; call it once, before the loop.")
        started = time.perf_counter()
        around, spec, order = self._around, self._spec, self._segments.order
        _check_dataset(dataset, order.facts.dataset_samples)
        plan = DataPlan(
            spec.seed, order.facts.dataset_samples, order.total_samples, spec.batch.max_per_slot,
            dataset.blocks if isinstance(dataset, BlockDataset) else None,
        )  # fmt: skip
        part, state = self._part(model, optimizer, scheduler, declared)
        rates = Rates(optimizer, scheduler, learning_rate_factor, spec.batch)
        restored = self._restore(state)
        if restored.record is not None:
            check_resumed(plan, restored.scalars)
        rates.restored()
        gradients: Gradients | CutGradients
        if part is None:
            gradients = Gradients(model, self._group, order.allocation.comm, find_unused_parameters)
        else:
            from elastic_core.train.cut_gradients import CutGradients

            gradients = CutGradients(part, self._group, self._places)
        reads = ReadLog(keep_indices=spec.audit == "full")
        committer = Committer(around.heart, around.wishes, self._remember) if around.heart is not None else None
        saver = Saver(self._group, around.store, reads, committer, self._places, part.groups if part else ())
        self._segments.attach(saver, committer)
        self._prepared = _Prepared(
            state=state,
            gradients=gradients,
            stepper=Stepper(self._group, spec, state, gradients, self._places, rates, clip_grad_norm),
            reader=Reader(dataset, collate, self.device),
            plan=plan,
            reads=reads,
            restored=restored,
            evaluate=evaluate or self._evaluate,
            cut=part,
        )
        self._segments.time("restore", time.perf_counter() - started)
        return gradients.wrapped, optimizer

    def batches(self) -> Iterator[Any]:
        """Micro-batches until this process should end. After each, call `step` with its mean loss."""
        ready = self._ready("session.batches")
        if self._places.layout.pipeline > 1:
            raise UserError(
                "A loop over session.batches() cannot run a pipeline: hand the loss to session.train(loss)."
            )
        for _ in self._steps(ready):
            yield from self._micro_batches(ready)

    def train(self, loss: Loss) -> None:
        """The whole loop over the steps, in any layout. `loss`: model and batch to the batch's mean loss, a scalar."""
        ready = self._ready("session.train")
        if self._places.layout.pipeline == 1:
            for batch in self.batches():
                self.step(loss(ready.gradients.wrapped, batch))
            return
        from elastic_core.train.pipe import Pipe

        assert ready.cut is not None
        pipe = Pipe(ready.cut, self._places, loss, self.device, self._autocast)
        for _ in self._steps(ready):
            self._pipeline_step(ready, pipe)

    def step(self, loss: Tensor) -> None:
        """Learn from the last batch: `loss` is its mean loss, a scalar. Steps the optimizer when a step is complete."""
        ready, current = self._ready("session.step"), self._current
        if current is None or current.micro is None:
            raise UserError("session.step(loss) was called twice for one batch, or outside the loop over batches().")
        micro, current.micro = current.micro, None
        with torch.autocast(self.device.type, enabled=False):
            ready.gradients.backward(loss, micro)
            if micro.last:
                self._finish(ready, current)

    def close(self) -> None:
        if self._prepared is not None:
            self._prepared.gradients.close()

    def _part(
        self, model: nn.Module, optimizer: Optimizer, scheduler: Any | None, declared: Declared
    ) -> tuple[Cut | None, TrainingState]:
        """This rank's part of the model, None for all of it, and the state of what it holds."""
        if self._places.replicated:
            model.to(self.device)
            return None, TrainingState(model, optimizer, scheduler, NoiseState())
        from elastic_core.train.cut_state import CutState
        from elastic_core.train.cutting import cut

        part = cut(model, optimizer, self._places, declared, self.device, self._autocast)
        return part, CutState(part.model, optimizer, scheduler, NoiseState(), part, self._places)

    def _steps(self, ready: _Prepared) -> Iterator[None]:
        """Yields where a step is to be taken."""
        self._restore_randomness(ready)
        self._segments.begin()
        while not self._segments.over:
            if self._segments.progress < 1.0:
                yield
            self._segments.proceed(self._describe)

    def _finish(self, ready: _Prepared, current: _Current) -> None:
        segments = self._segments
        segments.stepped(
            ready.stepper.finish(
                current.plan, segments.order.allocation, segments.progress, segments.outside(), current.started
            )
        )

    def _pipeline_step(self, ready: _Prepared, pipe: Pipe) -> None:
        from elastic_core.train.cut_gradients import CutGradients
        from elastic_core.train.pipe import micro_batch_size

        segments, layout, started = self._segments, self._places.layout, time.perf_counter()
        batch = segments.order.allocation.global_batch
        share = rank_share(min(batch, ready.plan.total_samples - segments.samples), self._places.data, layout.data)[1]
        plan = replace(ready.plan, max_local=micro_batch_size(share, layout.pipeline, ready.plan.max_local))
        step = plan_step(plan, segments.samples, batch, self._places.data, layout.data)
        ready.stepper.starts(segments.step)
        losses = pipe.run(step.micro, [self._read(ready, micro) for micro in step.micro])
        assert isinstance(ready.gradients, CutGradients)
        for micro, loss in zip(step.micro, losses, strict=True):
            ready.gradients.took(micro, loss)
        self._finish(ready, _Current(step, started))

    def _read(self, ready: _Prepared, micro: MicroBatch) -> Any:
        samples = ready.reader.read(micro.indices)
        if self._places.counts_samples:
            for epoch, indices in micro.reads(ready.plan.dataset_samples):
                ready.reads.record(epoch, indices)
        return samples

    def _ready(self, what: str) -> _Prepared:
        if self._prepared is None:
            raise UserError(f"{what} was called before session.prepare(model, optimizer, dataset).")
        return self._prepared

    def _micro_batches(self, ready: _Prepared) -> Iterator[Any]:
        """The batches of one step on this rank."""
        segments = self._segments
        batch = segments.order.allocation.global_batch
        places = self._places
        self._current = current = _Current(
            plan_step(ready.plan, segments.samples, batch, places.data, places.layout.data, alike=places.sharded),
            time.perf_counter(),
        )
        ready.stepper.starts(segments.step)
        for micro in current.plan.micro:
            current.micro = micro
            samples = self._read(ready, micro)
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
        slots = order.allocation.slots
        restored = restore(order.restore.candidates, store, self._group, slots, mark_bad, state.boxes)
        if restored.record is not None:
            state.load(restored.tensors, restored.scalars)
            self._segments.start_at(restored.record.step, restored.record.samples)
        elif order.warm_start is not None:
            restored = warm_start(store, order.warm_start, self._group, slots, state.boxes)
            state.load_weights(restored.tensors)
        self._report_sources(restored.num_bytes)
        return restored

    def _report_sources(self, num_bytes: int) -> None:
        """How many bytes all ranks together have read from where, with the next checkpoint."""
        memory = self._around.memory
        mine = memory.taken() if memory is not None else {"store": num_bytes}
        totals = [sum(ranks) for ranks in zip(*self._group.gather_vectors(list(mine.values())), strict=True)]
        if any(totals):  # a new job has read nothing
            for source, total in zip(mine, totals, strict=True):
                self._segments.time(f"restored_from_{source}_bytes", total)

    def _remember(self, commit: Commit) -> None:
        """Rank 0's: what was just committed is the latest that the nodes' memory should hold."""
        memory, slots = self._around.memory, self._segments.order.allocation.slots
        if memory is not None and commit.finished:
            memory.finished()
        elif memory is not None:
            memory.committed(commit.uri, [slot.node for slot in slots])

    def _restore_randomness(self, ready: _Prepared) -> None:
        """At the last moment, so that nothing between `prepare` and the loop can shift it."""
        restored, comm, places = ready.restored, ready.gradients.comm, self._places
        same = (
            restored.record is not None
            and restored.record.layout == places.layout
            and restored.scalars["world"] == self.world_size
        )
        if not restore_rank(restored.tensors, same, self.rank, comm):
            # Ranks that share layers draw alike, replicas and stages do not.
            stage = () if places.first_stage else (places.stage,)
            seed_everything(self._spec.seed, self._segments.samples, places.data, *stage)
        ready.restored = Restored()  # lets go of the tensors

    def _describe(self, final: bool) -> Content:
        ready, segments = self._ready("saving"), self._segments
        first, leads = self.rank == 0, self._places.data == 0 and self._places.tensor == 0
        metrics: dict[str, float] = {}
        measure = None
        if first and ready.evaluate is not None and (final or ready.evaluate_seconds < _QUICK_SECONDS):
            if ready.cut is None:
                metrics = self._evaluated(ready, lambda: ready.state.model)
            else:
                measure = partial(self._evaluated_from_store, ready, ready.cut)
        return Content(
            step=segments.step,
            samples=segments.samples,
            shared=ready.state.tensors(),
            own=rank_tensors(self.rank, ready.gradients.comm),
            scalars=self._scalars(ready) if leads else {},
            metrics={**segments.metrics(), **metrics},
            timings=segments.timings,
            measure=measure,
        )

    def _evaluated_from_store(self, ready: _Prepared, part: Cut, uri: str) -> dict[str, float]:
        """No rank holds the whole model: the checkpoint just written does."""
        from elastic_core.train.cut_state import whole_model

        return self._evaluated(ready, lambda: whole_model(part, read_weights(self._around.store, uri)))

    def _evaluated(self, ready: _Prepared, model: Callable[[], nn.Module]) -> dict[str, float]:
        """Held-out metrics: at every boundary, and with interval checkpoints as long as that is quick."""
        started = time.perf_counter()
        metrics = measured(ready.evaluate, model())
        ready.evaluate_seconds = time.perf_counter() - started
        self._segments.time("evaluate", ready.evaluate_seconds)
        self.log(**metrics)
        return metrics

    def _scalars(self, ready: _Prepared) -> dict[str, Any]:
        """Those of the training state, and how the data has been read since this stretch began."""
        segments = self._segments
        data = DataState.of(ready.plan, segments.order.allocation.global_batch, *segments.began)
        return {**ready.state.scalars(self.world_size), **data.to_scalars()}

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._spec.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()


def _check_dataset(dataset: Dataset[Any], num_samples: int) -> None:
    try:
        found = len(dataset)  # type: ignore[arg-type]
    except TypeError as error:
        raise UserError(
            f"The data set, a {type(dataset).__name__}, has no length. Give a map-style one, with len() and [index], "
            f"or one of blocks (elastic_core.train.blocks); docs/data.md says what to do with a stream."
        ) from error
    if found != num_samples:
        raise UserError(
            f"The data set has {found} samples here, but had {num_samples} when the job was submitted. The order of "
            f"the data depends on it: submit a new job for changed data."
        )
