"""One optimizer step, after the last backward: agree with the other ranks, set the rate, step, measure."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from torch.optim import Optimizer

from elastic_core.domain import Allocation
from elastic_core.spec import JobSpec
from elastic_core.train.agreement import Agreement, StepMessage, agree
from elastic_core.train.buffers import Buffers
from elastic_core.train.data import StepPlan
from elastic_core.train.gradients import Gradients, LocalGradients
from elastic_core.train.group import Group
from elastic_core.train.heartbeat import Wish
from elastic_core.train.learning_rate import noise_decay
from elastic_core.train.noise import NoiseEstimate, estimate
from elastic_core.train.observe import peak_memory_bytes
from elastic_core.train.places import Places
from elastic_core.train.rates import Rates
from elastic_core.train.training_state import TrainingState

if TYPE_CHECKING:
    from elastic_core.train.cut_gradients import CutGradients

NOISE_EVERY = 4  # steps between noise estimates that only observations use; norms cost two passes over the gradient


@dataclass(frozen=True, slots=True)
class Outside:
    """What a rank knows at a step besides its gradients."""

    wish: Wish
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
    wait_seconds: float
    learning_rate: float
    noise: NoiseEstimate | None


class Stepper:
    def __init__(
        self,
        group: Group,
        spec: JobSpec,
        state: TrainingState,
        gradients: Gradients | CutGradients,
        places: Places,
        rates: Rates,
        clip_grad_norm: float | None,
    ) -> None:
        self._group = group
        self._spec = spec
        self._state = state
        self._gradients = gradients
        self._rates = rates
        self._clip = clip_grad_norm
        self._buffers = Buffers(state.model, group, places)
        self._adascale = spec.batch.learning_rate_rule == "adascale"

    def starts(self, step: int) -> None:
        """Before the backward of the job's step number `step`: norms are taken at the same steps on every rank."""
        self._gradients.measure_norms = self._adascale or step % NOISE_EVERY == 0

    def finish(
        self, plan: StepPlan, allocation: Allocation, progress: float, outside: Outside, started: float
    ) -> StepResult:
        """`started`: `time.perf_counter` before the step's first sample was read. `progress` is before the step."""
        local = self._gradients.finish()
        agreed = agree(self._group, self._message(local, outside), allocation.layout)
        noise = self._judge(agreed, local, allocation)
        optimizer: Optimizer = self._state.optimizer
        with self._rates.applied(allocation.global_batch, progress, self._state.noise.mean()) as rate:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if agreed.buffers_changed:
            self._buffers.share()
        return StepResult(
            agreed=agreed,
            batch_samples=plan.num_samples,
            local_batch=max(len(micro.indices) for micro in plan.micro),
            accumulation=len(plan.micro),
            seconds=time.perf_counter() - started,
            wait_seconds=local.wait_seconds,
            learning_rate=rate,
            noise=noise,
        )

    def _message(self, local: LocalGradients, outside: Outside) -> StepMessage:
        part = local.part
        return StepMessage(
            wish=float(outside.wish),
            segment_over=float(outside.segment_over),
            steady=float(outside.steady),
            checkpoint_due=float(outside.checkpoint_due),
            save_ready=float(outside.save_ready),
            loss=local.loss,
            samples=float(part.samples) if part is not None else 0.0,
            sqr_norm=part.sqr_norm if part is not None else 0.0,
            buffers_changed=float(self._buffers.changed()),
            memory_bytes=float(peak_memory_bytes(self._group.device)),
        )

    def _judge(self, agreed: Agreement, local: LocalGradients, allocation: Allocation) -> NoiseEstimate | None:
        """This step's noise estimate, if it was measured; clips, and keeps AdaScale's means."""
        parts = local.micro_parts or agreed.parts
        measured = self._gradients.measure_norms and len(parts) > 1 and all(isfinite(part.sqr_norm) for part in parts)
        if not measured and self._clip is None:
            return None
        sqr_norm = self._gradients.sqr_norm()
        noise = estimate(parts, sqr_norm) if measured else None
        if self._clip is not None:
            self._gradients.clip(self._clip, sqr_norm)
        if self._adascale:
            base = self._spec.batch.base or self._spec.batch.min
            self._state.noise = self._state.noise.updated(noise, noise_decay(allocation.global_batch, base))
        return noise
