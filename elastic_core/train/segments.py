"""The segment loop around the steps: progress, observations, checkpoints, boundaries and hand-overs of one rank."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

from elastic_core.control.contract import CommitAnswer, LaunchOrder
from elastic_core.state.contract import CheckpointStore
from elastic_core.state.memory import NodeMemory
from elastic_core.train.committing import Committer
from elastic_core.train.exits import Stopped
from elastic_core.train.group import Group
from elastic_core.train.heartbeat import Heart, Wish, Wishes
from elastic_core.train.loop import SegmentClock
from elastic_core.train.observe import Observer, StepFacts
from elastic_core.train.saving import Content, SaveFailed, Saver
from elastic_core.train.stepping import Outside, StepResult

TARGET_STEPS = 20  # whose mean loss is compared with the job's target: one step's is noise
_SAVE_TRIES = 3
_FLUSH_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a session runs in. `heart` is rank 0's; `started_at`: `time.perf_counter` when the process, or what it has
    begun anew, started. `memory` is what lies in front of the store, if there is something."""

    order: LaunchOrder
    group: Group
    store: CheckpointStore
    wishes: Wishes
    heart: Heart | None
    started_at: float
    memory: NodeMemory | None = None


Describe = Callable[[bool], Content]
"""What to save now; the argument says whether it is for a boundary."""


class Segments:
    """`step` and `samples` are the job's; `order` is the one in force."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self.order = around.order
        self._first = True
        self.step = 0
        self.samples = 0
        self.loss = float("nan")
        self.over = False
        self.anew: LaunchOrder | None = None  # once it is over: the next segment's, for which everything is made anew
        self._agreed: StepResult | None = None
        self._logged: dict[str, float] = {}
        self.timings: dict[str, float] = {}  # since the last checkpoint: seconds, `..._at` in Unix time, `..._bytes`
        self._losses: list[float] = []
        self._latest: deque[float] = deque(maxlen=TARGET_STEPS)
        self._committer: Committer | None = None
        self._saver: Saver | None = None
        self._late = False
        self._begin_segment()

    def attach(self, saver: Saver, committer: Committer | None) -> None:
        self._saver, self._committer = saver, committer

    @property
    def progress(self) -> float:
        return min(1.0, self.samples / self.order.total_samples)

    def start_at(self, step: int, samples: int) -> None:
        self.step, self.samples = step, samples
        if self._around.heart is not None:
            self._around.heart.progressed(step, samples)

    def begin(self) -> None:
        """The first step is about to start."""
        self.timings["start"] = time.perf_counter() - self._around.started_at
        self._begin_segment()

    def time(self, name: str, seconds: float) -> None:
        """Report a span, or a number of bytes (`..._bytes`), with the next checkpoint."""
        self.timings[name] = seconds

    def log(self, metrics: Mapping[str, float]) -> None:
        self._observer.log(metrics)
        self._logged.update(metrics)

    def metrics(self) -> dict[str, float]:
        """Mean loss since the last checkpoint, and what was logged."""
        return {**({"loss": fmean(self._losses)} if self._losses else {}), **self._logged}

    def outside(self) -> Outside:
        """What this rank has to say about going on, at this moment."""
        assert self._saver is not None
        wish, _ = self._around.wishes.current
        due = self._committer is not None and self._clock.checkpoint_due()
        busy = self._saver.pending or (self._committer is not None and self._committer.busy)
        if due and busy and not self._late:
            self._late = True
            _say(self._around.group, "a checkpoint is due, and waits until the one before it is written and committed")
        return Outside(wish, self._clock.time_is_up(), due and not busy, self._saver.ready)

    def stepped(self, result: StepResult) -> None:
        """A step was taken: count it, report it when a report is due."""
        if self._first:
            self.timings["first_step"] = result.seconds
            self.timings["first_step_at"] = time.time() - result.seconds
        self._first = False
        self.start_at(self.step + 1, self.samples + result.batch_samples)
        self.loss = result.agreed.loss
        self._losses.append(self.loss)
        self._latest.append(self.loss)
        self._clock.stepped()
        self._agreed = result
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
            )
        )
        if self._observer.due():
            self._report()

    def proceed(self, describe: Describe) -> None:
        """After a step, on every rank alike: stop, reach a boundary, save, or simply go on.

        Sets `over` when this session should end. Raises `Stopped` when it should end without a commit.
        """
        result, self._agreed = self._agreed, None
        done = self.samples >= self.order.total_samples or self._target_reached()
        if result is None:
            assert done, "a segment proceeds after a step, or when there is none left"
            self._boundary(describe, done, leaving=False)
            return
        agreed = result.agreed
        if agreed.wish is Wish.STOP:
            raise Stopped(self._around.wishes.current[1] or "another rank was told to stop")
        leaving = agreed.wish is Wish.LEAVE
        asked = leaving or agreed.wish is Wish.BOUNDARY
        if done or asked or agreed.segment_over or self._clock.steps_are_up():
            self._boundary(describe, done, leaving)
        elif agreed.checkpoint_due:
            self._begin_interval(describe)
        elif agreed.save_ready:
            self._saver_does(Saver.advance)

    def _target_reached(self) -> bool:
        """The same on every rank: all of them know the agreed losses. A restart begins a new mean."""
        target = self.order.spec.work.target_loss
        return target is not None and len(self._latest) == TARGET_STEPS and fmean(self._latest) <= target

    def _begin_segment(self) -> None:
        self._clock = SegmentClock(self.order)
        self._observer = Observer(self.order.allocation, self.order.facts.dataset_samples)
        self._first = True
        self._late = False  # said once a segment
        self.began = self.step, self.samples

    def _report(self) -> None:
        observation = self._observer.take()
        if observation is not None and self._around.heart is not None:
            self._around.heart.observe(observation)

    def _begin_interval(self, describe: Describe) -> None:
        assert self._saver is not None
        started = time.perf_counter()
        self._saver.interval(self.order, describe(False))
        self._saved()
        self.time("stall", time.perf_counter() - started)  # of the steps; reported with the next checkpoint
        self._clock.saved()

    def _saver_does(self, what: Callable[[Saver], None]) -> None:
        assert self._saver is not None
        try:
            what(self._saver)
        except SaveFailed as error:
            _say(self._around.group, f"training goes on without an interval checkpoint: {error}")

    def _boundary(self, describe: Describe, finished: bool, leaving: bool) -> None:
        self.timings["last_step_at"] = time.time()
        self._report()
        self._saver_does(Saver.settle)
        heart = self._around.heart
        if heart is not None:
            heart.flush(_FLUSH_SECONDS)
        answer, sent = self._save_final(describe, finished, leaving)
        self._saved()
        self._around.wishes.clear_boundary()
        if answer.order is None:
            self.over = True
            return
        self._adopt(answer.order, sent)

    def _save_final(self, describe: Describe, finished: bool, leaving: bool) -> tuple[CommitAnswer, float]:
        assert self._saver is not None
        for attempt in range(1, _SAVE_TRIES + 1):
            try:
                return self._saver.final(self.order, describe(True), finished, leaving)
            except SaveFailed as error:
                _say(self._around.group, f"attempt {attempt} of {_SAVE_TRIES}: {error}")
                if attempt == _SAVE_TRIES:
                    raise
                time.sleep(2.0**attempt)
        raise AssertionError("unreachable")

    def _saved(self) -> None:
        self.timings, self._losses = {}, []

    def _adopt(self, order: LaunchOrder, sent: float) -> None:
        """The lease has passed on to the job's next segment. Another global batch alone changes nothing here."""
        before, after = self.order.allocation, order.allocation
        if self._around.heart is not None:
            self._around.heart.adopt(order, sent)
        if (before.slots, before.layout, before.comm) != (after.slots, after.layout, after.comm):
            self.anew, self.over = order, True
            return
        self.order = order
        self._begin_segment()


def _say(group: Group, text: str) -> None:
    if group.rank == 0:
        print(f"elastic: {text}", file=sys.stderr, flush=True)
