"""How far a job is, and what was measured on the way: counted step by step, reported with observations and checkpoints.

The same on every rank but for what is timed. It exists before the model does: restoring sets where the count begins.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from torch import nn

from elastic_core.domain import AUTO, EXACT, Allocation, ExchangeCost, ExchangeFigures, ExchangeNeeds, Link
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.protocol.trainer import NOTE_CHARACTERS
from elastic_core.spec.job import most_samples
from elastic_core.text import plural, shortened
from elastic_core.train.gradients.noise import NoiseState
from elastic_core.train.steps.divergence import DivergenceGuard
from elastic_core.train.steps.early_stopping import Evaluations
from elastic_core.train.steps.observe import Observer, StepFacts
from elastic_core.train.steps.runtime_context import RuntimeContext
from elastic_core.train.steps.stepping import ALONE_EVERY, NOISE_EVERY, StepResult, may_grow, needs_noise
from elastic_core.train.steps.work_done import WorkDone
from elastic_core.train.versions import differences, loaded_versions

TARGET_STEPS = 20  # whose mean loss is compared with the job's target: one step's is noise
_VERSIONS, _CODE = "versions", "code"  # in a checkpoint's scalars
_OF_FIRST_STEP = ("first_step", "first_step_at")  # among the timings
NOISE_UNKNOWN = (
    "the gradient noise was never measured, so that no gain of a larger batch is known, and none is taken: learning "
    "rate and progress are as at batch.base, or less. It takes a global batch of two samples, and finite gradients"
)

BATCH_STAYS = (
    "these steps measure no gradient noise, and until it was measured, of this job or another of its task, the global "
    "batch stays at batch.base, whatever batch.max is. It is measured by whole models, on one slot or several, whose "
    "gradients are those of the whole batch, of eight samples on one slot and of two on several: not while weights are "
    "averaged instead, and not of a model that is cut and has one replica"
)


class Progress:
    """`step` and `samples` are the job's; `order` is the one in force; `loss` is the last step's, over all ranks.
    `in_force`: the algorithm by which steps exchange.

    `work` is None where samples are the measure of the job's work.
    """

    def __init__(self, context: RuntimeContext) -> None:
        self._control_link = context.control_link
        self._started_at = context.started_at
        self.order = context.order
        self.step = 0
        self.samples = 0
        self.work = WorkDone() if context.order.spec.work.scale_invariant else None
        self.evaluations = Evaluations()  # counted where the job has patience only
        self.most_samples = most_samples(context.order.spec, context.order.total_samples)
        self.loss = float("nan")
        self.over = False  # this session should end
        self.next_order: LaunchOrder | None = None  # then: the next segment's, for which this process restarts training
        self.leased_from = 0.0  # monotonic: since when at the latest its lease holds
        self.timings: dict[str, float] = {}  # since the last checkpoint: seconds, `..._at` in Unix time, `..._bytes`
        self._logged: dict[str, float] = {}
        self._unmeasured = 0  # steps of this process before the first that measured gradient noise
        self._measured = False  # one did
        self._losses: list[float] = []  # since the last checkpoint
        self._taken: tuple[dict[str, float], list[float]] = {}, []  # timings and losses that went with that
        self._latest: deque[float] = deque(maxlen=TARGET_STEPS)
        self.in_force = EXACT if self.order.allocation.comm == AUTO else self.order.allocation.comm
        self._exchanges: tuple[ExchangeFigures, ...] = ()  # not reported yet
        self._needs: ExchangeNeeds | None = None  # like
        self._environment = ""  # in words, where it is another than the checkpoint's
        self._guard = DivergenceGuard(context.order, context.group.world)
        self._open_segment()

    @property
    def fraction(self) -> float:
        """Part of the job's work that is done, in [0, 1], by its own measure."""
        done = self.samples if self.work is None else self.work.samples
        return min(1.0, done / self.order.total_samples)

    @property
    def passes(self) -> int:
        """Finished passes over the data set, by the job's own measure of work."""
        done = self.samples if self.work is None else self.work.samples
        return int(done // self.order.facts.dataset_samples)

    @property
    def patience_is_over(self) -> bool:
        patience = self.order.spec.work.patience
        return patience is not None and self.evaluations.since_best >= patience

    @property
    def done(self) -> bool:
        """The job's work is done. The same on every rank: all know the agreed losses. A restart begins a new mean."""
        if self.fraction >= 1.0 or self.samples >= self.most_samples or self.patience_is_over:
            return True
        target = self.order.spec.work.target_loss
        return target is not None and len(self._latest) == TARGET_STEPS and fmean(self._latest) <= target

    def begin(self) -> None:
        """The first step is about to start."""
        self.timings["start"] = time.perf_counter() - self._started_at
        self._open_segment()

    def begin_segment(self) -> None:
        """The next step is the first of a segment in processes that go straight on."""
        self._open_segment(self._observer if self._observer.allocation == self._allocation else None)

    def _open_segment(self, before: Observer | None = None) -> None:
        self._observer = self._new_observer(before)
        self._first = True
        self.began = self.step, self.samples
        self._work_before = self.work

    def exchange_is(
        self, algorithm: str, tried: tuple[ExchangeFigures, ...] = (), costs: tuple[ExchangeCost, ...] = (),
        link: Link | None = None,
    ) -> None:  # fmt: skip
        """The algorithm in force from the next step on; what was not reported of the steps before is left out.
        `tried`: of a choice, like `costs` and the `link` that it was made on."""
        self.in_force, self._exchanges = algorithm, tried
        held = self._allocation
        self._needs = ExchangeNeeds(
            num_slots=held.num_slots, num_nodes=held.num_nodes, type=held.slots[0].type, costs=costs, link=link
        ) if costs else None  # fmt: skip
        logged = self._observer.metrics
        self._observer = self._new_observer()
        self._observer.log(logged)

    def _new_observer(self, before: Observer | None = None) -> Observer:
        allocation = self._allocation
        interval = self.order.spec.comm.steps_of(allocation.comm) if allocation.num_slots > 1 else 1
        return Observer(allocation, self.order.facts.dataset_samples, interval, before)

    @property
    def _allocation(self) -> Allocation:
        """With the algorithm that is in force."""
        return replace(self.order.allocation, comm=self.in_force)

    def start_at(self, step: int, samples: int, scalars: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.evaluations = Evaluations.from_scalars(scalars)
        others = differences(scalars.get(_VERSIONS, {}), loaded_versions())
        if others:
            words = f"from step {step} on it runs on other versions: {', '.join(others)}"
            self._environment = shortened(words, NOTE_CHARACTERS)
        self._stand_at(step, samples, WorkDone.from_scalars(scalars) if self.work is not None else None)

    def back_to_beginning(self) -> None:
        """The segment's steps are dropped."""
        self._stand_at(*self.began, self._work_before)

    def _stand_at(self, step: int, samples: int, work: WorkDone | None) -> None:
        self.step, self.samples, self.work = step, samples, work
        if self._control_link is not None:
            self._control_link.heartbeat.progressed(step, samples, *self.progress_and_gain)

    @property
    def progress_and_gain(self) -> tuple[float | None, float | None]:
        """As in `protocol.trainer.Commit`."""
        return (None, None) if self.work is None else (self.work.samples, self.work.gain)

    def scalars(self) -> dict[str, Any]:
        """For the checkpoint."""
        early = {} if self.order.spec.work.patience is None else self.evaluations.to_scalars()
        made_by = {_VERSIONS: loaded_versions(), **({_CODE: self.order.code} if self.order.code else {})}
        return {**early, **({} if self.work is None else self.work.to_scalars()), **made_by}

    def time(self, name: str, seconds: float) -> None:
        """Report a span, or a number of bytes (`..._bytes`), with the next checkpoint."""
        self.timings[name] = seconds

    def log(self, metrics: Mapping[str, float]) -> None:
        self._observer.log(metrics)
        self._logged.update(metrics)

    def metrics(self) -> dict[str, float]:
        """Mean loss since the last checkpoint, and what was logged."""
        return {**({"loss": fmean(self._losses)} if self._losses else {}), **self._logged}

    def saved(self) -> None:
        """A checkpoint has taken the timings and the losses with it."""
        self._taken = self.timings, self._losses
        self.timings, self._losses = {}, []

    def given_up(self) -> None:
        """That checkpoint is none, and they go with the next one.

        If it was to end the segment, steps since then are this segment's after all, which has had its first one.
        """
        timings, losses = self._taken
        since = {name: value for name, value in self.timings.items() if name not in _OF_FIRST_STEP}
        self.timings, self._losses = {**timings, **since}, losses + self._losses
        self._taken = {}, []

    def count(self, result: StepResult) -> None:
        """A step was taken."""
        if self._first:
            self.timings["first_step"] = result.seconds
            self.timings["first_step_at"] = time.time() - result.seconds
        self._first = False
        work = self.work.after(result.work, result.gain) if self.work is not None else None
        self._stand_at(self.step + 1, self.samples + result.batch_samples, work)
        self.loss = result.agreed.loss
        self.evaluations = self.evaluations.trained(self.loss, result.batch_samples)
        self._losses.append(self.loss)
        self._latest.append(self.loss)
        self._measured = self._measured or result.noise is not None
        self._unmeasured += not self._measured
        self._observer.add(
            StepFacts(
                step=self.step,
                samples=self.samples,
                batch_samples=result.batch_samples,
                local_batch=result.local_batch,
                accumulation=result.accumulation,
                step_seconds=result.seconds,
                sync_seconds=result.wait_seconds,
                loss=self.loss,
                learning_rate=result.learning_rate,
                noise=result.noise,
                memory_bytes=result.agreed.memory_bytes,
                progress=self.progress_and_gain[0],
                gain=result.gain,
            )
        )

    def watch(self) -> None:
        """After a step was counted. Raises `Diverged`."""
        self._guard.stepped(self.loss, self.step, self.samples, self.in_force)

    def check_weights(self, model: nn.Module) -> None:
        """Before a checkpoint of it. Raises `Diverged`."""
        self._guard.check_weights(model, self.step)

    def notes(self, noise: NoiseState) -> tuple[str, ...]:
        """What the job's user should know with a checkpoint taken now; `noise` as it has been measured so far."""
        notes = [self._environment] if self._environment else []
        if needs_noise(self.order.spec) and noise.weight == 0 and self.step > 0:
            notes.append(NOISE_UNKNOWN)
        if self._batch_stays:
            notes.append(BATCH_STAYS)
        if self.fraction < 1.0 and self.samples >= self.most_samples:
            notes.append(
                f"ended at work.max_samples: {self.samples} samples were read, and {self.fraction:.1%} of the work is "
                "done"
            )
        if self.patience_is_over:
            best = "not a number" if self.evaluations.best is None else f"{self.evaluations.best:.6g}"
            passes = plural(self.evaluations.since_best, "pass", "passes")
            notes.append(f"ended by work.patience: nothing was better than {best} in the last {passes}")
        return tuple(notes)

    @property
    def _batch_stays(self) -> bool:
        """Whether its batch might grow, and waits for a measurement that this process does not make."""
        spec, every = self.order.spec, ALONE_EVERY if self.order.allocation.num_slots == 1 else NOISE_EVERY
        return may_grow(spec) and not needs_noise(spec) and not self._measured and self._unmeasured >= 2 * every

    def report_due(self) -> bool:
        return self._observer.due(self._control_link.heartbeat.interval if self._control_link is not None else 0.0)

    def report(self) -> None:
        """Send an observation of the steps since the last."""
        observation = self._observer.take()
        if observation is not None and self._control_link is not None:
            told = replace(observation, exchanges=self._exchanges, exchange_needs=self._needs)
            self._control_link.observations.add(told)
            self._exchanges, self._needs = (), None
