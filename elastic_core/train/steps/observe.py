"""From steps to observations: medians over the steps since the last report; means where weights are averaged, which
is not at every step.

Where they are averaged at an interval, times are means over whole intervals, the latest, back beyond the last report
where that is needed: most reports of a few steps hold no average, and would have a step look as if averages took no
time. Until a whole interval has passed a report has no times.

The first step of a start, and of another batch or exchange, is left out: it pays for warming up (allocator, buckets,
caches) and would teach the throughput models nonsense. Where the same processes go on with the same allocation, none
is. Noise estimates are unbiased but wild, so those are averaged.
"""

from __future__ import annotations

import resource
import time
from collections import deque
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

    def __init__(
        self, allocation: Allocation, dataset_samples: int, interval: int = 1, before: Observer | None = None
    ) -> None:
        """`interval`: steps, of which one exchange serves all. `before`: of the same processes and allocation, so that
        the next step pays for no warming up."""
        self.allocation = allocation
        self._dataset_samples = dataset_samples
        self._interval = interval
        earlier = [*before._earlier, *before._steps] if before is not None else []
        self._earlier: deque[StepFacts] = deque(earlier, maxlen=interval - 1)  # than the last report
        self._steps: list[StepFacts] = []
        self.metrics: dict[str, float] = {}  # logged since the last report
        self.warm: bool = before is not None and before.warm
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
        if not steps:
            return None
        timed = self._whole_intervals(steps)
        self._earlier.extend(steps)
        return summarise(steps, timed, self.allocation, self._dataset_samples, metrics)

    def _whole_intervals(self, steps: list[StepFacts]) -> list[StepFacts]:
        """The latest steps in whole intervals: these and a few before them, or fewer where no more are known."""
        known = [*self._earlier, *steps]
        intervals = min(-(-len(steps) // self._interval), len(known) // self._interval)
        return known[len(known) - intervals * self._interval :]


def summarise(
    steps: list[StepFacts],
    timed: list[StepFacts],
    allocation: Allocation,
    dataset_samples: int,
    metrics: Mapping[str, float],
) -> Observation:
    """`timed`: the steps whose times are told, none where they are not known yet."""
    last, told = steps[-1], timed or steps
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
        step_seconds=middle(facts.step_seconds for facts in timed) if timed else 0.0,
        sync_seconds=middle(facts.sync_seconds for facts in timed) if timed else 0.0,
        samples_per_second=sum(facts.batch_samples for facts in told) / sum(facts.step_seconds for facts in told),
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
