"""One optimizer step, after the last backward: agree with the other ranks, set the rate, step, measure."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from torch.optim import Optimizer

from elastic_core.domain import Allocation
from elastic_core.spec import JobSpec
from elastic_core.train.checkpoint.training_state import TrainingState
from elastic_core.train.data.batches import StepPlan
from elastic_core.train.data.fixed_parts import part_size
from elastic_core.train.gradients.gradients import LocalGradients
from elastic_core.train.gradients.learning_rate import gain, noise_decay, on_grid, step_work
from elastic_core.train.gradients.model_buffers import Buffers
from elastic_core.train.gradients.noise import NoiseEstimate, Part, estimate
from elastic_core.train.gradients.rates import Rates
from elastic_core.train.lease.stop_requests import StopRequest
from elastic_core.train.parallel.group import Group, exchanging
from elastic_core.train.parallel.places import Places
from elastic_core.train.steps.agreement import Agreement, StepMessage, agree
from elastic_core.train.steps.observe import peak_memory_bytes
from elastic_core.train.steps.work_done import WorkDone

if TYPE_CHECKING:
    from elastic_core.train.gradients.gradients_of import AnyGradients

NOISE_EVERY = 4  # steps between noise estimates: norms cost two passes over the gradient
_ALWAYS_BEFORE = (
    16  # steps that all measure it, where it decides about learning rates or progress: nothing is known yet
)
# Of the steps after these one in so many is cut in parts where nothing else measures the noise that the batch waits
# for: it takes up to half as long again, so that this costs about a hundredth of the time.
ALONE_EVERY = 64
_ALONE = (1,)  # workers by which it is cut


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What a rank knows at a step besides its gradients."""

    stop_request: StopRequest
    segment_over: bool  # rank 0's
    steady: bool  # rank 0's
    checkpoint_due: bool  # rank 0's
    save_ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    agreed: Agreement
    batch_samples: int
    local_batch: int
    accumulation: int
    seconds: float
    wait_seconds: float  # see `Agreement`, and this rank's where the optimizer's step exchanges
    learning_rate: float
    noise: NoiseEstimate | None
    gain: float | None = None  # base-batch steps that this one counts for, where progress is the measure of work
    work: int = 0  # then: what it adds to it, in 1/`WORK_UNITS` of a sample


class Stepper:
    def __init__(
        self,
        group: Group,
        spec: JobSpec,
        state: TrainingState,
        gradients: AnyGradients,
        places: Places,
        rates: Rates,
        clip_grad_norm: float | None,
        base_steps: int,
    ) -> None:
        """`base_steps`: that the job's work is at the base batch: no schedule goes further."""
        self._group = group
        self._spec = spec
        self._state = state
        self._gradients = gradients
        self._rates = rates
        self._clip = clip_grad_norm
        self._buffers = Buffers(state.model, group, places)
        self._base = spec.batch.base or spec.batch.min
        self._keeps_noise = needs_noise(spec)
        self._counts = fixed_counts(spec)
        self._base_steps = base_steps
        self._step = 0
        self._cut_alone = False

    def begin_step(self, step: int, global_batch: int | None = None) -> tuple[int, ...]:
        """Before the backward of the job's step number `step`: norms are taken at the same steps on every rank.

        Gives the numbers of workers by which `plan_step` is to cut the step, () where it need not. `global_batch`: None
        where steps are not cut.
        """
        self._step, self._cut_alone = step, False
        early, every = self._keeps_noise and step < _ALWAYS_BEFORE, self._keeps_noise and not self._counts
        due = early or every or step % NOISE_EVERY == 0
        self._gradients.measure_norms = due and self._gradients.of_whole_batch
        if not self._gradients.measure_norms or self._counts:
            return self._counts if self._gradients.measure_norms else ()
        if global_batch is not None and self._is_whole(global_batch):
            self._cut_alone = step < _ALWAYS_BEFORE or step % ALONE_EVERY == 0
        return _ALONE if self._cut_alone else ()

    def _is_whole(self, global_batch: int) -> bool:
        """Whether one worker takes the step in one piece, so that nothing can be compared, and its batch may grow."""
        most = self._spec.batch.max_per_slot
        whole = self._group.world == 1 and (most is None or most >= global_batch)
        grows = may_grow(self._spec) and not self._keeps_noise
        return whole and grows and part_size(global_batch, _ALONE) > 1  # batch norm cannot normalise a single sample

    def finish(
        self,
        plan: StepPlan,
        allocation: Allocation,
        progress: float,
        work: WorkDone | None,
        status: RankStatus,
        started: float,
    ) -> StepResult:
        """`started`: `time.perf_counter` before the step's first sample was read. `progress` and `work`, which is None
        where samples are its measure, are before the step."""
        local = self._gradients.finish()
        agreed = agree(self._group, self._message(local, status), allocation.layout)
        noise = self._clip_and_estimate_noise(agreed, local, allocation, plan)
        optimizer: Optimizer = self._state.optimizer
        known = self._state.noise.mean()
        if self._spec.work.scale_invariant:
            known = on_grid(known)
        units = step_work(plan.num_samples, self._base, known) if work is not None else 0
        further = 1 if work is None else work.steps_to(work.after(units, None), self._base, self._base_steps)
        # Ranks may exchange momenta or weights within the step.
        with self._rates.applied(allocation.global_batch, progress, known, further) as rate, exchanging():
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if agreed.buffers_changed:
            self._buffers.share()
        return StepResult(
            agreed=agreed,
            batch_samples=plan.num_samples,
            local_batch=plan.num_samples if self._cut_alone else max(len(micro.indices) for micro in plan.micro),
            accumulation=1 if self._cut_alone else len(plan.micro),  # as most steps are
            seconds=time.perf_counter() - started,
            wait_seconds=agreed.wait_seconds + self._waited(),
            learning_rate=rate,
            noise=noise,
            gain=gain(plan.num_samples, self._base, known) if self._spec.work.scale_invariant else None,
            work=units,
        )

    def _waited(self) -> float:
        """Seconds within the optimizer's step, to which ranks come together: from their agreement."""
        exchange = self._gradients.comm
        return exchange.take_wait_seconds() if exchange is not None else 0.0

    def _message(self, local: LocalGradients, status: RankStatus) -> StepMessage:
        part = local.part
        return StepMessage(
            stop_request=float(status.stop_request),
            segment_over=float(status.segment_over),
            steady=float(status.steady),
            checkpoint_due=float(status.checkpoint_due),
            save_ready=float(status.save_ready),
            loss=local.loss,
            samples=float(part.samples) if part is not None else 0.0,
            sqr_norm=part.sqr_norm if part is not None else 0.0,
            buffers_changed=float(self._buffers.changed()),
            memory_bytes=float(peak_memory_bytes(self._group.device)),
            wait_seconds=local.wait_seconds,
            first_part=local.fixed_parts[0],
            last_part=local.fixed_parts[1],
        )

    def _clip_and_estimate_noise(
        self, agreed: Agreement, local: LocalGradients, allocation: Allocation, plan: StepPlan
    ) -> NoiseEstimate | None:
        """This step's noise estimate, if it was measured; clips, and keeps the means that decide."""
        if self._counts:  # a part that nobody has whole has no norm
            parts = tuple(Part(plan.part_size, sqr) for sqr in agreed.fixed_parts if sqr != 0.0)
        else:
            parts = local.micro_parts or agreed.parts
        measured = self._gradients.measure_norms and len(parts) > 1 and all(isfinite(part.sqr_norm) for part in parts)
        if not measured and self._clip is None:
            return None
        sqr_norm = self._gradients.sqr_norm()
        noise = estimate(parts, sqr_norm, plan.num_samples) if measured else None
        if self._clip is not None:
            self._gradients.clip(self._clip, sqr_norm)
        if self._keeps_noise:
            self._keep(noise, allocation)
        return noise

    def _keep(self, noise: NoiseEstimate | None, allocation: Allocation) -> None:
        """An estimate stands for the steps since the last one, too: the means forget as fast as with one a step."""
        decay = noise_decay(allocation.global_batch, self._base)
        if self._counts and self._step > _ALWAYS_BEFORE:
            decay **= NOISE_EVERY
        self._state.noise = self._state.noise.updated(noise, decay)


def needs_noise(spec: JobSpec) -> bool:
    """Whether the noise decides about the job's learning rates or its progress, and not only about its batch."""
    return spec.batch.learning_rate_rule == "adascale" or spec.work.scale_invariant


def may_grow(spec: JobSpec) -> bool:
    """Whether a job's batch may be larger than its base batch, once its noise was measured."""
    return spec.batch.max > (spec.batch.base or spec.batch.min) and not spec.places_layers


def fixed_counts(spec: JobSpec) -> tuple[int, ...]:
    """The numbers of workers that a job may have whose noise is measured from fixed parts of the batch; () for others.

    Those are replicas of the whole model: of a model that is cut, a rank knows a part of a gradient only.
    """
    limits = spec.limits()
    return limits.slot_counts if needs_noise(spec) and not limits.cuts else ()
