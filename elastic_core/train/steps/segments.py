"""The segment loop around the steps: checkpoints, boundaries and hand-overs of one rank.

A boundary that nobody asked for, and after which the allocation is likely to stay (`Segments.steady`), does not stop
training: its checkpoint is asynchronous, written and committed while the next steps run. If the answer passes the
lease on as it is, those are the next segment's first steps. If not, they are dropped, as those since the last commit
are in a crash, and taken again from the checkpoint: nothing is committed, or reported as observed, before the answer.
So a run with such boundaries computes the same as one that waits at each.

From the last step of a segment to the ledger's commit: `proceed` here, `_boundary` or `_boundary_async`, then the
stages of `checkpoint.pipeline` from top to bottom, then `_adopt` here with the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from elastic_core.comm.algorithm import Exchange
from elastic_core.comm.tuning.against_exact import AgainstExact
from elastic_core.comm.tuning.auto_exchange import AutoExchange
from elastic_core.host.exits import Stopped
from elastic_core.train.checkpoint.committing import Answered
from elastic_core.train.checkpoint.kept_state import SavedState
from elastic_core.train.checkpoint.pipeline import CheckpointPipeline, Ending, SaveFailed
from elastic_core.train.checkpoint.rank_part import Content
from elastic_core.train.lease.stop_requests import StopRequest
from elastic_core.train.parallel.group import communicating
from elastic_core.train.steps.agreement import Agreement
from elastic_core.train.steps.loop import SegmentClock
from elastic_core.train.steps.runtime_context import RuntimeContext
from elastic_core.train.steps.segment_progress import Progress
from elastic_core.train.steps.stepping import RankStatus, StepResult

_SAVE_TRIES = 3

Describe = Callable[[bool], Content]
"""What to save now; the argument says whether it is for a boundary."""


class Segments:
    """Takes `progress` from one segment to the next, as long as this process stays."""

    def __init__(
        self,
        context: RuntimeContext,
        progress: Progress,
        pipeline: CheckpointPipeline,
        describe: Describe,
        exchange: Exchange | None = None,
        against: AgainstExact | None = None,
    ) -> None:
        """`against`: of an exchange that is compared with the exact sum."""
        self._stop_requests = context.stop_requests
        self._control_link = context.control_link
        self._group = context.group
        self._progress = progress
        self._pipeline = pipeline
        self._describe = describe
        self._exchange, self._against = exchange, against
        self._agreed: StepResult | None = None
        self._wait_logged = False  # of this segment
        self._unanswered = False  # the last boundary's asynchronous checkpoint is not committed yet
        batch = context.order.spec.batch
        self._batch_stays = batch.min == batch.max  # or did at the last boundary
        self._clock = SegmentClock(context.order)

    @property
    def steady(self) -> bool:
        """As far as this rank knows, the next segment gets just what this one has. Rank 0 knows.

        A job whose batch changes at each boundary would have to restart from its checkpoint at each.
        """
        return self._control_link is not None and self._control_link.heartbeat.steady and self._batch_stays

    @property
    def _grows_soon(self) -> bool:
        """As far as this rank knows, workers for further slots are starting. Rank 0 knows.

        A boundary before they are ready would be followed at once by another, with steps between that are dropped.
        """
        return self._control_link is not None and self._control_link.heartbeat.awaits_workers

    @property
    def saved(self) -> SavedState | None:
        """The last checkpoint that ended a segment, as this rank holds it until the next step."""
        return self._pipeline.saved

    def begin(self) -> None:
        """The first step is about to start."""
        self._progress.begin()
        if self._other_in_force:  # e.g. of a restored optimizer, whose warm-up is not over
            self._name_exchange()
        self._clock = SegmentClock(self._progress.order)

    def status(self) -> RankStatus:
        """What this rank has to say about going on, at this moment."""
        stop_request, _ = self._stop_requests.current
        due = self._control_link is not None and self._clock.checkpoint_due()
        over = self._clock.time_is_up() and not self._grows_soon
        busy = self._pipeline.busy
        if (due or over) and busy and not self._wait_logged:
            self._wait_logged = True
            self._group.log("a checkpoint is due, and waits until the one before it is written and committed")
        return RankStatus(
            stop_request,
            # A segment may last longer for an interval checkpoint, but never begins with two boundaries unanswered.
            segment_over=over and (self._unanswered or not busy),
            steady=self.steady,
            checkpoint_due=due and not busy,
            save_ready=self._pipeline.ready,
        )

    def stepped(self, result: StepResult) -> None:
        """A step was taken: count it, report it when a report is due. Raises `Diverged`."""
        self._progress.count(result)
        self._progress.watch()
        self._clock.stepped()
        self._agreed = result
        # Under which epoch is not known of unanswered steps; a trial of averages makes one report, of whole intervals.
        if self._progress.report_due() and not self._unanswered and not self._tries_averages:
            self._progress.report()
        self._weigh_exchange(result)

    def proceed(self) -> None:
        """After a step, on every rank alike: stop, reach a boundary, save, or simply go on.

        Sets `Progress.over` when this session should end. Raises `Stopped` when it should end without a commit.
        """
        result, self._agreed = self._agreed, None
        done = self._progress.done
        if result is None:
            assert done, "a segment proceeds after a step, or when there is none left"
            self._boundary(Ending(finished=done))
            return
        agreed = result.agreed
        if agreed.stop_request is StopRequest.STOP:
            raise Stopped(self._stop_requests.current[1] or "another rank was told to stop")
        ending = Ending(finished=done, draining=agreed.stop_request is StopRequest.LEAVE)
        over = agreed.segment_over or self._clock.steps_are_up()
        if self._unanswered:
            self._proceed_unanswered(agreed, ending, over)
        elif over or done or agreed.stop_request is not StopRequest.NONE:
            self._end_segment(agreed, ending)
        elif agreed.checkpoint_due:
            self._save_interval()
        elif agreed.save_ready:
            self._tolerate_failure(self._pipeline.advance)

    def _weigh_exchange(self, result: StepResult) -> None:
        """An observation is of one algorithm. Of steps whose epoch is not known yet there is none."""
        changed = self._exchange_changes(result.seconds, result.wait_seconds)
        if changed:
            if not self._unanswered:
                self._progress.report()
            self._name_exchange()

    def _exchange_changes(self, seconds: float, wait_seconds: float) -> bool:
        """After a step: another is in force, or more is known of it. Collective now and then."""
        choice = self._choice
        with communicating("the choice of an exchange"):
            told = choice is not None and choice.stepped(seconds, wait_seconds)
        return told or self._other_in_force

    @property
    def _choice(self) -> AutoExchange | AgainstExact | None:
        """What times steps under exchanges, and tells of the one that is chosen."""
        return self._exchange if isinstance(self._exchange, AutoExchange) else self._against

    @property
    def _other_in_force(self) -> bool:
        """Than steps are reported under: at the beginning, and where a warm-up has ended."""
        return self._exchange is not None and self._exchange.in_force != self._progress.in_force

    def _name_exchange(self) -> None:
        exchange, choice = self._exchange, self._choice
        assert exchange is not None, "another one is in force"
        if choice is not None and choice.chosen:
            self._progress.exchange_is(exchange.in_force, choice.tried, choice.costs(), choice.link)
        else:
            self._progress.exchange_is(exchange.in_force)

    @property
    def _tries_averages(self) -> bool:
        return isinstance(self._exchange, AutoExchange) and self._exchange.tries_averages

    def settled(self) -> None:
        """Ranks have made one model of what they hold, or do so next: between two steps, on every rank alike."""
        if self._against is not None:
            self._against.settled()

    def _content(self, boundary: bool) -> Content:
        self.settled()
        return self._describe(boundary)

    def _save_interval(self) -> None:
        started = time.perf_counter()
        self._pipeline.save_async(self._progress.order, self._content(False))
        self._progress.saved()
        self._progress.time("stall", time.perf_counter() - started)  # of the steps; reported with the next checkpoint
        self._clock.saved()

    def _end_segment(self, agreed: Agreement, ending: Ending) -> None:
        if agreed.steady and agreed.stop_request is StopRequest.NONE and not ending.finished:
            self._boundary_async()
        else:
            self._boundary(ending)

    def _boundary(self, ending: Ending) -> None:
        """Save and commit, and wait for the answer."""
        self._end_steps()
        answered = self._save(ending)
        self._progress.saved()
        if self._adopt(answered):
            self._begin_segment()

    def _boundary_async(self) -> None:
        """Go on as if the next segment had begun; `_proceed_unanswered` hears whether it has."""
        self._end_steps()
        self._pipeline.save_async(self._progress.order, self._content(True), Ending())
        self._progress.saved()
        self._unanswered = True
        self._begin_segment()

    def _end_steps(self) -> None:
        """The segment ends with the step just taken."""
        self._progress.time("last_step_at", time.time())
        self._progress.report()
        if self._pipeline.pending:
            self._group.log("a boundary waits until the checkpoint before it is written")
            self._tolerate_failure(self._pipeline.wait)

    def _save(self, ending: Ending) -> Answered:
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._pipeline.save(self._progress.order, self._content(True), ending)
            except SaveFailed as error:
                self._group.log(f"attempt {attempt} of {_SAVE_TRIES}: {error}")
                if attempt == _SAVE_TRIES:
                    raise
                time.sleep(2.0**attempt)

    def _proceed_unanswered(self, agreed: Agreement, ending: Ending, over: bool) -> None:
        """A request for a boundary that nobody leaves at was meant for the segment that has ended, or comes again. It
        says that the answer will be another allocation: further steps would be dropped, so none is taken before it."""
        ends = over or ending != Ending()
        changes = agreed.stop_request is StopRequest.BOUNDARY
        if not ends and not changes and not agreed.save_ready:
            return
        started = time.perf_counter()
        if ends:
            self._group.log("a boundary waits until the one before it is written and committed")
        try:
            answered = self._pipeline.wait() if ends or changes else self._pipeline.advance()
        except SaveFailed as error:
            step = self._progress.step
            self._group.log(f"the segment goes on to step {step}, where it is saved again: {error}")
            self._unanswered = False
            self._progress.given_up()
            self._boundary(ending)
            return
        if answered is not None:
            self._unanswered = False
            if not self._adopt(answered, steps_were_taken=True):
                return
        concluding = self._progress.timings.get("conclude", 0.0)
        self._progress.time("conclude", concluding + time.perf_counter() - started)
        if ends:
            self._end_segment(agreed, ending)

    def _adopt(self, answered: Answered, steps_were_taken: bool = False) -> bool:
        """Whether the lease passes on to the job's next segment so that training simply goes on; else this is over.

        Another global batch alone changes nothing, unless steps were taken with the old one before the answer came.
        """
        progress = self._progress
        self._stop_requests.clear_boundary()
        order = answered.answer.order
        if order is not None:
            if self._control_link is not None:
                self._control_link.adopt(order, answered.sent)
            before, after = progress.order.allocation, order.allocation
            self._batch_stays = before.global_batch == after.global_batch
            same = replace(before, global_batch=after.global_batch) == after
            if same and (self._batch_stays or not steps_were_taken):
                progress.order = order
                return True
        progress.next_order, progress.leased_from, progress.over = order, answered.sent, True
        step, _ = progress.began
        if steps_were_taken and progress.step > step:
            self._group.log(f"{progress.step - step} steps since the checkpoint of step {step} are dropped")
            progress.back_to_beginning()
        return False

    def _begin_segment(self) -> None:
        self._progress.begin_segment()
        self._clock = SegmentClock(self._progress.order)
        self._wait_logged = False

    def _tolerate_failure(self, go_on: Callable[[], object]) -> None:
        try:
            go_on()
        except SaveFailed as error:
            self._group.log(f"training goes on without an interval checkpoint: {error}")
            self._progress.given_up()
