"""From steps to observations: medians over the steps since the last report; means where weights are averaged, which
is not at every step.

The first step of a start, and of another batch or exchange, is left out: it pays for warming up (allocator, buckets,
caches) and would teach the throughput models nonsense. Where the same processes go on with the same allocation, none
is. Noise estimates are unbiased but wild, so those are averaged.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median

import torch

from elastic_core.comm.algorithms import averages
from elastic_core.domain import Allocation, Layout, Observation
from elastic_core.train.gradients.noise import NoiseEstimate

EVERY_SECONDS = 2.0
EVERY_STEPS = 20
AT_LEAST_SECONDS = 0.5  # 20 quick steps are no reason to report ten times a second


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What one step measured. `step` and `samples` are the job's, after the step."""

    step: int
    samples: int
    batch_samples: int
    local_batch: int
    accumulation: int
    step_seconds: float
    sync_seconds: float
    loss: float
    learning_rate: float
    noise: NoiseEstimate | None
    memory_bytes: int
    progress: float | None = None
    gain: float | None = None


class Observer:
    """Collects steps and says when a report is due."""

    def __init__(self, allocation: Allocation, dataset_samples: int, warm: bool = False) -> None:
        """`warm`: the next step pays for no warming up."""
        self.allocation = allocation
        self._dataset_samples = dataset_samples
        self._steps: list[StepFacts] = []
        self.metrics: dict[str, float] = {}  # logged since the last report
        self.warm = warm
        self._since = time.monotonic()

    def add(self, facts: StepFacts) -> None:
        if self.warm:
            self._steps.append(facts)
        else:
            self.warm = True
            self._since = time.monotonic()

    def log(self, metrics: Mapping[str, float]) -> None:
        self.metrics.update(metrics)

    def due(self, interval: float = 0.0) -> bool:
        """`interval`: that the control plane wants between messages; where it is long, reports are as far apart."""
        elapsed = time.monotonic() - self._since
        if interval > EVERY_SECONDS:
            return elapsed >= interval
        return elapsed >= EVERY_SECONDS or (len(self._steps) >= EVERY_STEPS and elapsed >= AT_LEAST_SECONDS)

    def take(self) -> Observation | None:
        """The report over the steps since the last one; None if there were none."""
        steps, self._steps = self._steps, []
        metrics, self.metrics = self.metrics, {}
        self._since = time.monotonic()
        return summarise(steps, self.allocation, self._dataset_samples, metrics) if steps else None


def summarise(
    steps: list[StepFacts], allocation: Allocation, dataset_samples: int, metrics: Mapping[str, float]
) -> Observation:
    last = steps[-1]
    noise = [facts.noise for facts in steps if facts.noise is not None]
    types = allocation.counts()
    middle = fmean if averages(allocation.comm) else median
    return Observation(
        step=last.step,
        samples=last.samples,
        at=time.time(),
        epoch=last.samples / dataset_samples,
        num_slots=allocation.num_slots,
        num_nodes=allocation.num_nodes,
        type=allocation.slots[0].type
        if allocation.layout.servers
        else max(types, key=lambda kind: (types[kind], kind)),
        global_batch=allocation.global_batch,
        local_batch=max(facts.local_batch for facts in steps),
        accumulation=max(facts.accumulation for facts in steps),
        step_seconds=middle(facts.step_seconds for facts in steps),
        sync_seconds=middle(facts.sync_seconds for facts in steps),
        samples_per_second=sum(facts.batch_samples for facts in steps) / sum(facts.step_seconds for facts in steps),
        loss=fmean(facts.loss for facts in steps),
        learning_rate=last.learning_rate,
        grad_sqr=fmean(estimate.sqr for estimate in noise) if noise else None,
        grad_var=fmean(estimate.var for estimate in noise) if noise else None,
        memory_bytes=max(facts.memory_bytes for facts in steps),
        metrics=dict(metrics),
        layout=None if allocation.layout == Layout(data=allocation.num_slots) else allocation.layout,
        progress=last.progress,
        gain=last.gain,
        comm=allocation.comm,
        stages=allocation.stages,
    )


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory this process has used so far: of the CUDA device, or resident on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
