"""The two tasks of a segment's run: hold its slots, then have its processes run until the attempt is over.

Both only ask the ledger and do as it says; trying again, clearing or attaching to what runs already is the same call.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.triggers.base import StartTriggerArgs

from elastic_airflow.access.behalf import who_marked
from elastic_airflow.access.retries import cleared
from elastic_airflow.ledger_trigger import LedgerTrigger
from elastic_airflow.operators import ElasticOperator
from elastic_airflow.outcomes import segment_summary, segment_words
from elastic_airflow.triggers import GrantTrigger, SegmentTrigger
from elastic_core.domain import SegmentState
from elastic_core.errors import Conflict, Forbidden
from elastic_core.protocol.records import SegmentStatus
from elastic_core.settings import Settings

if TYPE_CHECKING:
    from elastic_core.protocol.http_client import HttpControl

PATIENCE_SECONDS = 1.5  # what a resize takes to free its slots: shorter than deferring and coming back


class SegmentOperator(ElasticOperator):
    """Base of the two: which segment, and what its final states mean for a task."""

    template_fields: Sequence[str] = ("segment_id",)

    def __init__(self, *, segment_id: str = "{{ run_id }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.segment_id = segment_id

    def work(self, control: HttpControl, segment: SegmentStatus) -> dict[str, Any]:
        """One turn of the task: its result, or it defers."""
        raise NotImplementedError

    def execute(self, context: Any) -> dict[str, Any]:
        control = self.control()
        segment = control.segment(self.segment_id)
        if segment.state is SegmentState.RUNNING and cleared(context["ti"], self.retries or 0):
            # What the trigger's on_kill does; but this one was cleared before a triggerer had taken up its trigger.
            segment = self._revoke(control, segment, context["ti"])
        self.show_links(control.job(segment.job_id))
        return self.work(control, segment)

    def _revoke(self, control: HttpControl, segment: SegmentStatus, ti: Any) -> SegmentStatus:
        """For whoever cleared the task; where they may not, the segment goes on and the task attaches to it."""
        try:
            acting = control.acting(who_marked(ti.dag_id, ti.run_id, ti.task_id, ti.map_index))
            return acting.revoke(self.segment_id, "cleared by a user in Airflow")
        except Forbidden as refusal:
            self.log.warning("segment %s goes on: %s", self.segment_id, refusal)
            return segment

    def resume(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        self.log.info("%s", event["happened"])
        control = self.control()
        segment = control.segment(self.segment_id)
        self.show_links(control.job(segment.job_id))
        return self.work(control, segment)

    def result_if_over(self, segment: SegmentStatus) -> dict[str, Any] | None:
        """The task's result when the segment is committed; raises when it failed; None while it is open."""
        if segment.state is SegmentState.FAILED:
            raise AirflowFailException(segment_words(segment))
        if segment.state is SegmentState.CANCELLED:
            raise AirflowSkipException(segment_words(segment))
        if segment.state is not SegmentState.COMMITTED:
            return None
        self.log.info("%s", segment_words(segment))
        return segment_summary(segment)


class AcquireSlotsOperator(SegmentOperator):
    """Ask the ledger for the segment's slots and wait for them. Succeeds at once where the lease was handed over.

    Airflow starts it in the triggerer and ends it there; only a failure has it go on in a process.
    """

    ui_color = "#f7f0dc"
    start_from_trigger = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        arguments = {"job_id": "", "segment_id": self.segment_id, "conn_id": self.conn_id, "ends_task": True}
        path = f"{GrantTrigger.__module__}.{GrantTrigger.__qualname__}"
        self.start_trigger_args = StartTriggerArgs(path, "resume", trigger_kwargs=arguments)

    def work(self, control: HttpControl, segment: SegmentStatus) -> dict[str, Any]:
        if segment.state.open and not segment.lease_live:
            segment = _acquire_patiently(control, self.segment_id)
        result = self.result_if_over(segment)
        if result is not None:
            return result
        if not segment.lease_live:
            trigger = GrantTrigger(segment.job_id, self.segment_id, self.conn_id, ends_task=True)
            raise TaskDeferred(trigger=trigger, method_name="resume")
        self.log.info("%s", segment_words(segment))
        return segment_summary(segment)


class RunSegmentOperator(SegmentOperator):
    """Have the segment's processes run; ends when it is committed. An attempt that failed is followed by the next."""

    ui_color = "#e3ecf7"

    def work(self, control: HttpControl, segment: SegmentStatus) -> dict[str, Any]:
        if segment.state.open and not segment.lease_live:
            self.log.info("attempt %d has no lease (%s): asking again", segment.attempt, segment.end_reason or "new")
            segment = _acquire_patiently(control, self.segment_id)
        result = self.result_if_over(segment)
        if result is not None:
            return result
        trigger: LedgerTrigger = GrantTrigger(segment.job_id, self.segment_id, self.conn_id)
        if segment.lease_live and self._start(control):
            trigger = SegmentTrigger(segment.job_id, self.segment_id, segment.epoch or 0, self.conn_id)
        raise TaskDeferred(trigger=trigger, method_name="resume")

    def _start(self, control: HttpControl) -> bool:
        """Start or find the processes. False when the lease was lost meanwhile."""
        from elastic_core.launch.launchers import chosen, start_segment

        settings = Settings()
        try:
            order, group = start_segment(control, chosen(settings), settings, self.segment_id)
        except Conflict as conflict:
            self.log.info("%s", conflict)
            return False
        self.log.info("attempt %d under epoch %d runs on %d slots at global batch %d; processes of epoch %d, logs: %s",
                      order.attempt, order.epoch, order.allocation.num_slots, order.allocation.global_batch,
                      order.origin_epoch, group.log_path)  # fmt: skip
        return True


def _acquire_patiently(control: HttpControl, segment_id: str) -> SegmentStatus:
    """The segment after it was asked for, with a little patience."""
    until = time.monotonic() + PATIENCE_SECONDS
    segment = control.acquire(segment_id)
    while segment.state.open and not segment.lease_live and time.monotonic() < until:
        time.sleep(0.25)
        segment = control.segment(segment_id)
    return segment
