"""When a deferred task may be queued again."""

from __future__ import annotations

from airflow.sdk.configuration import conf


def quiet_seconds() -> float:
    """No event that queues the task again earlier than this after its deferral.

    The supervisor of the deferring task lingers up to one heartbeat interval, and then the executor reports a success.
    Airflow 3.3 passes that over for a task that is scheduled, and fails one that is queued or runs by then
    (`SchedulerJobRunner.process_executor_events`). A task that its trigger has ended is in neither state.
    """
    return 2.0 * conf.getint("workers", "min_heartbeat_interval")
