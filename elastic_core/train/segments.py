"""The segment loop around the steps: progress, observations, checkpoints, boundaries and hand-overs of one rank.

A boundary that nobody asked for, and after which the allocation is likely to stay (`Segments.steady`), does not stop
training: the checkpoint is written and committed behind the next steps. If the answer passes the lease on as it is,
those are the next segment's first steps. If not, they are dropped, as those since the last commit are in a crash, and
taken again from the checkpoint: nothing is committed, or reported as observed, before the answer. So a run with such
boundaries computes the same as one that waits at each.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

from elastic_core.control.contract import LaunchOrder
from elastic_core.state.contract import CheckpointStore
from elastic_core.state.memory import NodeMemory
from elastic_core.train.agreement import Agreement
from elastic_core.train.committing import Committer
from elastic_core.train.exits import Stopped
from elastic_core.train.group import Group
from elastic_core.train.heartbeat import Heart, Wish, Wishes
from elastic_core.train.loop import SegmentClock
from elastic_core.train.observe import Observer, StepFacts
from elastic_core.train.saving import Answered, Content, Ending, SaveFailed, Saver
from elastic_core.train.stepping import Outside, StepResult

TARGET_STEPS = 20  # whose mean loss is compared with the job's target: one step's is noise
_SAVE_TRIES = 3


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
        self._unanswered = False  # the last boundary's commit is on its way behind the steps
        batch = around.order.spec.batch
        self._batch_stays = batch.min == batch.max  # or did at the last boundary
        self._begin_segment()

    def attach(self, saver: Saver, committer: Committer | None) -> None:
        self._saver, self._committer = saver, committer

    @property
    def progress(self) -> float:
        return min(1.0, self.samples / self.order.total_samples)

    @property
    def steady(self) -> bool:
        """As far as this rank knows, the next segment gets just what this one has. Rank 0 knows.

        A job whose batch changes at each boundary would begin anew from its checkpoint at each.
        """
        heart = self._around.heart
        return heart is not None and heart.steady and self._batch_stays

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
        over = self._clock.time_is_up()
        busy = self._saver.pending or (self._committer is not None and self._committer.busy)
        if (due or over) and busy and not self._late:
            self._late = True
            self._around.group.say("a checkpoint is due, and waits until the one before it is written and committed")
        return Outside(
            wish,
            # A segment may last longer for an interval checkpoint, but never begins behind two boundaries.
            segment_over=over and (self._unanswered or not busy),
            steady=self.steady,
            checkpoint_due=due and not busy,
            save_ready=self._saver.ready,
        )

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
        if self._observer.due() and not self._unanswered:  # under which epoch is not known yet
            self._report()

    def proceed(self, describe: Describe) -> None:
        """After a step, on every rank alike: stop, reach a boundary, save, or simply go on.

        Sets `over` when this session should end. Raises `Stopped` when it should end without a commit.
        """
        result, self._agreed = self._agreed, None
        done = self.samples >= self.order.total_samples or self._target_reached()
        if result is None:
            assert done, "a segment proceeds after a step, or when there is none left"
            self._boundary(describe, Ending(finished=done))
            return
        agreed = result.agreed
        if agreed.wish is Wish.STOP:
            raise Stopped(self._around.wishes.current[1] or "another rank was told to stop")
        ending = Ending(finished=done, leaving=agreed.wish is Wish.LEAVE)
        over = agreed.segment_over or self._clock.steps_are_up()
        if self._unanswered:
            self._proceed_unanswered(describe, agreed, ending, over)
        elif over or done or agreed.wish is not Wish.NONE:
            self._end(describe, agreed, ending)
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
        self._saver.behind(self.order, describe(False))
        self._saved()
        self.time("stall", time.perf_counter() - started)  # of the steps; reported with the next checkpoint
        self._clock.saved()

    def _saver_does(self, what: Callable[[Saver], object]) -> None:
        assert self._saver is not None
        try:
            what(self._saver)
        except SaveFailed as error:
            self._around.group.say(f"training goes on without an interval checkpoint: {error}")

    def _end(self, describe: Describe, agreed: Agreement, ending: Ending) -> None:
        if agreed.steady and agreed.wish is Wish.NONE and not ending.finished:
            self._boundary_behind(describe)
        else:
            self._boundary(describe, ending)

    def _reach(self) -> None:
        """The segment ends with the step just taken."""
        assert self._saver is not None
        self.timings["last_step_at"] = time.time()
        self._report()
        if self._saver.pending:
            self._around.group.say("a boundary waits until the checkpoint before it is written")
            self._saver_does(Saver.settle)

    def _boundary(self, describe: Describe, ending: Ending) -> None:
        self._reach()
        answered = self._save_final(describe, ending)
        self._saved()
        if self._passed_on(answered):
            self._begin_segment()

    def _boundary_behind(self, describe: Describe) -> None:
        """Go on as if the next segment had begun; `_proceed_unanswered` hears whether it has."""
        assert self._saver is not None
        self._reach()
        self._saver.behind(self.order, describe(True), Ending())
        self._saved()
        self._unanswered = True
        self._begin_segment()

    def _proceed_unanswered(self, describe: Describe, agreed: Agreement, ending: Ending, over: bool) -> None:
        """A wish for a boundary that nobody leaves at was the ended segment's, or is uttered again."""
        assert self._saver is not None
        ends = over or ending != Ending()
        if not ends and not agreed.save_ready:
            return
        started = time.perf_counter()
        if ends:
            self._around.group.say("a boundary waits until the one before it is written and committed")
        try:
            answered = self._saver.settle() if ends else self._saver.advance()
        except SaveFailed as error:
            self._around.group.say(f"the segment goes on to step {self.step}, where it is saved again: {error}")
            self._unanswered = False
            self._boundary(describe, ending)
            return
        if answered is not None:
            self._unanswered = False
            if not self._passed_on(answered, behind=True):
                return
        self.time("conclude", self.timings.get("conclude", 0.0) + time.perf_counter() - started)
        if ends:
            self._end(describe, agreed, ending)

    def _save_final(self, describe: Describe, ending: Ending) -> Answered:
        assert self._saver is not None
        for attempt in range(1, _SAVE_TRIES + 1):
            try:
                return self._saver.final(self.order, describe(True), ending)
            except SaveFailed as error:
                self._around.group.say(f"attempt {attempt} of {_SAVE_TRIES}: {error}")
                if attempt == _SAVE_TRIES:
                    raise
                time.sleep(2.0**attempt)
        raise AssertionError("unreachable")

    def _saved(self) -> None:
        self.timings, self._losses = {}, []

    def _passed_on(self, answered: Answered, behind: bool = False) -> bool:
        """Whether the lease passes on to the job's next segment so that training simply goes on; else this is over.

        Another global batch alone changes nothing, unless steps were taken `behind` the answer with the old one.
        """
        self._around.wishes.clear_boundary()
        order = answered.answer.order
        if order is not None:
            if self._around.heart is not None:
                self._around.heart.adopt(order, answered.sent)
            before, after = self.order.allocation, order.allocation
            self._batch_stays = before.global_batch == after.global_batch
            same = (before.slots, before.layout, before.comm) == (after.slots, after.layout, after.comm)
            if same and (self._batch_stays or not behind):
                self.order = order
                return True
        self.anew, self.over = order, True
        step, samples = self.began
        if behind and self.step > step:
            self._around.group.say(f"{self.step - step} steps since the checkpoint of step {step} are dropped")
            self.start_at(step, samples)
        return False
