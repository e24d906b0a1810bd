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
from elastic_core.train.gradients.gradients import Gradients, LocalGradients
from elastic_core.train.gradients.learning_rate import noise_decay
from elastic_core.train.gradients.model_buffers import Buffers
from elastic_core.train.gradients.noise import NoiseEstimate, estimate
from elastic_core.train.gradients.rates import Rates
from elastic_core.train.lease.stop_requests import StopRequest
from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.places import Places
from elastic_core.train.steps.agreement import Agreement, StepMessage, agree
from elastic_core.train.steps.observe import peak_memory_bytes

if TYPE_CHECKING:
    from elastic_core.train.gradients.partitioned_gradients import PartitionedGradients

NOISE_EVERY = 4  # steps between noise estimates that only observations use; norms cost two passes over the gradient


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
    wait_seconds: float
    learning_rate: float
    noise: NoiseEstimate | None


class Stepper:
    def __init__(
        self,
        group: Group,
        spec: JobSpec,
        state: TrainingState,
        gradients: Gradients | PartitionedGradients,
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

    def begin_step(self, step: int) -> None:
        """Before the backward of the job's step number `step`: norms are taken at the same steps on every rank."""
        self._gradients.measure_norms = self._adascale or step % NOISE_EVERY == 0

    def finish(
        self, plan: StepPlan, allocation: Allocation, progress: float, status: RankStatus, started: float
    ) -> StepResult:
        """`started`: `time.perf_counter` before the step's first sample was read. `progress` is before the step."""
        local = self._gradients.finish()
        agreed = agree(self._group, self._message(local, status), allocation.layout)
        noise = self._clip_and_estimate_noise(agreed, local, allocation)
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
        )

    def _clip_and_estimate_noise(
        self, agreed: Agreement, local: LocalGradients, allocation: Allocation
    ) -> NoiseEstimate | None:
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
