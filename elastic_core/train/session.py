"""`Session`: what an ordinary PyTorch loop needs to become elastic, in five lines.

    def train(session):
        model, optimizer = session.prepare(model, optimizer, dataset)
        for batch in session.batches():
            loss = loss_function(model, batch)
            session.step(loss)

The loop sees micro-batches and never where one segment ends and the next begins: `batches` restores, saves at
intervals and boundaries, goes straight on when the lease passes on with the same slots, and ends when this process
should, or is to restart training with other ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from elastic_core.domain import Allocation, Slot
from elastic_core.errors import UserError
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.train.blocks import BlockDataset
from elastic_core.train.checkpoint.committing import Committer
from elastic_core.train.checkpoint.kept_state import KeptState
from elastic_core.train.checkpoint.own_part import own_part
from elastic_core.train.checkpoint.pipeline import CheckpointPipeline
from elastic_core.train.checkpoint.restore import Restored, restore, timings_of, warm_start
from elastic_core.train.checkpoint.training_state import TrainingState, restore_rank, seed_everything
from elastic_core.train.checkpoint.undrawn_weights import Drawn, make_model
from elastic_core.train.data.audit import ReadLog
from elastic_core.train.data.batches import Collate, DataPlan, MicroBatch, Reader, plan_step
from elastic_core.train.data.data_state import check_dataset, check_resumed
from elastic_core.train.data.item_weights import CountItems, ItemWeights
from elastic_core.train.gradients.compared import against_exact
from elastic_core.train.gradients.gradients_of import gradients_of
from elastic_core.train.gradients.rates import Rates
from elastic_core.train.layouts import UNCUT, Declared, dense_fallback
from elastic_core.train.servers.server_places import places_of
from elastic_core.train.steps.content_source import ContentSource
from elastic_core.train.steps.early_stopping import HeldOut
from elastic_core.train.steps.evaluating import Evaluate
from elastic_core.train.steps.prepared import Current, Prepared
from elastic_core.train.steps.runtime_context import RuntimeContext
from elastic_core.train.steps.segment_progress import Progress
from elastic_core.train.steps.segments import Segments
from elastic_core.train.steps.stepping import Stepper, fixed_counts

if TYPE_CHECKING:  # at run time where a layout needs them: they load torch's parallel libraries
    from elastic_core.train.parallel.loss_calls import Loss


class Session:
    """One rank's part in training one job, over the segments in which its group stays as it is."""

    def __init__(self, context: RuntimeContext) -> None:
        """Seeds torch, NumPy and Python from the job's seed: models made from now on are alike on every rank."""
        self._context = context
        self._group = context.group
        self._progress = Progress(context)
        self._places = places_of(context.group, context.order.allocation)
        self._prepared: Prepared | None = None
        self._current: Current | None = None
        self._spec = context.order.spec
        self._evaluate: Evaluate | None = None
        self._drawn: Drawn | None = None
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
    def allocation(self) -> Allocation:
        """What the job holds now: the slots of all ranks by rank, the global batch, the layout."""
        return self._progress.order.allocation

    @property
    def slot(self) -> Slot:
        """The slot that this rank runs on: its node, and its resource type as the cluster names it."""
        return self.allocation.slots[self.rank]

    @property
    def completes_step(self) -> bool:
        """The batch at hand is the step's last micro-batch: `step` exchanges gradients and steps the optimizer."""
        return self._current is not None and self._current.micro is not None and self._current.micro.last

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the job so far."""
        return self._progress.step

    @property
    def num_samples(self) -> int:
        """Samples that the job has read so far, over all passes of the data set."""
        return self._progress.samples

    @property
    def progress(self) -> float:
        """Part of the job's work that is done, in [0, 1], by the measure of its spec."""
        return self._progress.fraction

    @property
    def total_samples(self) -> int:
        """Samples that the job's work is, over all passes of the data set, counted at the base batch."""
        return self._progress.order.total_samples

    @property
    def base_steps(self) -> int:
        """Optimizer steps that the job's work is at the base batch: what a schedule by steps is made for."""
        batch = self._spec.batch
        return math.ceil(self.total_samples / (batch.base or batch.min))

    @property
    def last_loss(self) -> float:
        """Mean loss over the last step's whole global batch, the same on every rank."""
        return self._progress.loss

    @property
    def over(self) -> bool:
        """`batches` has ended: training may return."""
        return self._progress.over

    @property
    def next_order(self) -> LaunchOrder | None:
        """The next segment's order, where training is to restart in this process, with other ranks."""
        return self._progress.next_order

    @property
    def leased_from(self) -> float:
        """Since when at the latest the lease of `next_order` holds (monotonic seconds)."""
        return self._progress.leased_from

    def log(self, **metrics: float) -> None:
        """Report metrics with the next observation and checkpoint. Rank 0's count, the others' are ignored."""
        self._progress.log({name: float(value) for name, value in metrics.items()})

    def model(self, make: Callable[[], nn.Module]) -> nn.Module:
        """What `make` gives. After a resize in place it is not filled with random numbers, since `prepare` restores it.

        `prepare` must be given this very model then, with all of its parameters in its state. They move to where this
        process kept their values: nothing else may lie in their memory (`weight.detach()`).
        """
        kept = self._context.kept
        model, self._drawn = make_model(make, kept.drawn if kept is not None else None)
        return model

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
        count_items: CountItems | None = None,
    ) -> tuple[nn.Module, Optimizer]:
        """Restore the job's state into model and optimizer, and make them parallel as the layout says. Call it once.

        Returns the model to call in the loop and the optimizer (which `step` steps). `dataset` is map-style and
        gives the same sample for the same index on every rank. `scheduler`: a torch scheduler made on `optimizer`,
        stepped once an optimizer step. `collate`: list of samples to a batch. `learning_rate_factor`: schedule by
        progress in [0, 1], where there is no scheduler. `evaluate`: metrics of the plain model on held-out data, for
        checkpoints. `clip_grad_norm`: greatest norm of a gradient. `find_unused_parameters`: as in DDP. `declared`: how
        the model may be partitioned. `count_items`: of a batch, as many as its loss is a mean over, where samples have
        different numbers (tokens, but not padding): then the loss is that mean over the whole global batch, however it
        is cut. Raises `UserError` for what cannot be trained.
        """
        if self._prepared is not None:
            raise UserError("session.prepare was called twice; call it once, before the loop.")
        started = time.perf_counter()
        context, spec, order = self._context, self._spec, self._progress.order
        check_dataset(dataset, order.facts.dataset_samples)
        plan = DataPlan(
            spec.seed, order.facts.dataset_samples, self._progress.most_samples, spec.batch.max_per_slot,
            dataset.blocks if isinstance(dataset, BlockDataset) else None,
        )  # fmt: skip
        items = None if count_items is None else ItemWeights(count_items, order.allocation, self._group.gather_vectors)
        if not self.allocation.stages:
            dense_fallback(model)
        partition, state = own_part(model, optimizer, scheduler, self._places, declared, self.device, self._autocast)
        rates = Rates(optimizer, scheduler, learning_rate_factor, spec.batch)
        restored = self._restore(state)
        if restored.record is not None:
            check_resumed(plan, restored.scalars)
        rates.restored()
        gradients = gradients_of(
            model, optimizer, partition, self._group, self._places, order.allocation, spec.comm,
            find_unused_parameters=find_unused_parameters, fixed_parts=bool(fixed_counts(spec)),
        )  # fmt: skip
        reads = ReadLog(keep_indices=spec.audit == "full")
        committer = None
        if context.control_link is not None:
            committer = Committer(
                context.control_link, context.stop_requests, lambda commit: context.remember(commit, self.allocation)
            )
        optimizer_groups = partition.groups if partition is not None else ()
        pipeline = CheckpointPipeline(self._group, context.store, reads, committer, self._places, optimizer_groups)
        content = ContentSource(
            self._group, self._places, context.store, self._progress, plan, state, gradients,
            evaluate or self._evaluate, partition.skeleton if partition is not None else None,
        )  # fmt: skip
        against = against_exact(gradients, self._group, order.allocation, spec.comm)
        self._prepared = Prepared(
            gradients=gradients,
            stepper=Stepper(self._group, spec, state, gradients, self._places, rates, clip_grad_norm, self.base_steps),
            segments=Segments(context, self._progress, pipeline, content.describe, gradients.comm, against),
            reader=Reader(dataset, collate, self.device),
            plan=plan,
            reads=reads,
            restored=restored,
            partition=partition,
            wire=declared.wire,
            items=items,
            held_out=HeldOut.of(order, self._group, evaluate or self._evaluate, model, gradients.settle),
        )
        self._progress.time("restore", time.perf_counter() - started)
        return gradients.wrapped, optimizer

    def batches(self) -> Iterator[Any]:
        """Micro-batches until this process should end. After each, call `step` with its mean loss."""
        ready = self._ready("session.batches")
        if self._places.takes_whole_steps:
            raise UserError(
                "A loop over session.batches() cannot run a pipeline, or a placed job: hand the loss to "
                "session.train(loss)."
            )
        for _ in self._steps(ready):
            yield from self._micro_batches(ready)

    def train(self, loss: Loss) -> None:
        """The whole loop over the steps, in any layout. `loss`: model and batch to the batch's mean loss, a scalar."""
        ready = self._ready("session.train")
        if not self._places.takes_whole_steps:
            for batch in self.batches():
                self.step(loss(ready.gradients.wrapped, batch))
            return
        from elastic_core.train.steps.whole_steps import whole_steps

        progress = self._progress
        read, ratio = partial(self._read, ready), progress.order.spec.comm.stage_ratio
        steps = whole_steps(ready, self._places, loss, read, self.device, self._autocast, ratio)
        for _ in self._steps(ready):
            started = time.perf_counter()
            ready.stepper.begin_step(progress.step)
            step = steps.run(progress.samples, progress.order.allocation.global_batch)
            self._finish(ready, Current(step, started))
        steps.close()

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

    def keep(self) -> KeptState | None:
        """What this process keeps of the checkpoint that training restarts from with other ranks; None where it does
        not. Collective."""
        order, ready = self.next_order, self._prepared
        saved = ready.segments.saved if ready is not None else None
        if order is None or saved is None:
            return None
        record = order.restore.candidates[0]
        return KeptState.of(saved, record, self._group, self.allocation.slots, self._drawn)

    def close(self) -> None:
        if self._prepared is not None:
            self._prepared.gradients.close()

    def _steps(self, ready: Prepared) -> Iterator[None]:
        """Yields where a step is to be taken."""
        self._restore_randomness(ready)
        ready.segments.begin()
        while not self._progress.over:
            if not self._progress.done:
                yield
            ready.segments.proceed()
            self._context.stepped()

    def _finish(self, ready: Prepared, current: Current) -> None:
        progress, segments = self._progress, ready.segments
        allocation, status = progress.order.allocation, segments.status()
        segments.stepped(
            ready.stepper.finish(current.plan, allocation, progress.fraction, progress.work, status, current.started)
        )
        if ready.held_out is not None and progress.passes > progress.evaluations.passes:
            segments.settled()
            progress.evaluations, metrics = ready.held_out.after_pass(progress.evaluations, progress.passes)
            progress.log(metrics)

    def _read(self, ready: Prepared, micro: MicroBatch) -> Any:
        samples = ready.reader.read(micro.indices)
        if self._places.counts_samples:
            for epoch, indices in micro.reads(ready.plan.dataset_samples):
                ready.reads.record(epoch, indices)
        return samples

    def _ready(self, what: str) -> Prepared:
        if self._prepared is None:
            raise UserError(f"{what} was called before session.prepare(model, optimizer, dataset).")
        return self._prepared

    def _micro_batches(self, ready: Prepared) -> Iterator[Any]:
        """The batches of one step on this rank."""
        progress, places = self._progress, self._places
        batch = min(progress.order.allocation.global_batch, ready.plan.total_samples - progress.samples)
        self._current = current = Current(
            plan_step(
                ready.plan, progress.samples, batch, places.data, places.layout.data,
                alike=places.sharded, fixed_parts=ready.stepper.begin_step(progress.step, batch),
            ),
            time.perf_counter(),
        )  # fmt: skip
        read = ((micro, self._read(ready, micro)) for micro in (() if places.serves else current.plan.micro))
        weighed = read if ready.items is None else ready.items.of_step(read)
        if places.serves:  # its workers read
            self._finish(ready, current)
            return
        for micro, samples in weighed:
            current.micro = micro
            ready.gradients.expect(micro)
            with self._autocast():
                yield samples
            if current.micro is not None:
                raise UserError(
                    "The loop asked session.batches() for the next batch without calling session.step(loss) for the "
                    "last one. Call it exactly once for every batch."
                )

    def _restore(self, state: TrainingState) -> Restored:
        link, store, order = self._context.control_link, self._context.store, self._progress.order
        mark_bad = link.heartbeat.trainer.mark_bad if link is not None else None
        slots = order.allocation.slots
        kept, memory = self._context.kept, self._context.memory
        restored = restore(
            order.restore.candidates, store, self._group, slots, self._places.layout, mark_bad, state.boxes, kept,
            state.memory(),
        )  # fmt: skip
        if kept is not None:
            kept.loaded(slots)
        started = time.perf_counter()
        if restored.record is not None:
            undrawn = kept is not None and kept.drawn is not None and self._drawn is not None
            state.load(restored.tensors, restored.scalars, unheld=undrawn)
            self._progress.start_at(restored.record.step, restored.record.samples, restored.scalars)
        elif order.warm_start is not None:
            sha256 = order.warm_start_sha256
            restored = warm_start(store, order.warm_start, sha256, self._group, slots, state.boxes, state.memory())
            state.load_weights(restored.tensors)
        self._progress.timings.update(timings_of(restored, time.perf_counter() - started, kept, self._group, memory))
        return restored

    def _restore_randomness(self, ready: Prepared) -> None:
        """At the last moment, so that nothing between `prepare` and the loop can shift it."""
        restored, comm, places = ready.restored, ready.gradients.comm, self._places
        if not restore_rank(restored.tensors, restored.same_ranks, self.rank, comm):
            # Ranks that share layers draw alike, replicas and stages do not.
            stage = () if places.first_stage else (places.stage,)
            seed_everything(self._spec.seed, self._progress.samples, places.data, *stage)
        ready.restored = Restored()  # lets go of the tensors

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._spec.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()
