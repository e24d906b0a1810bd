"""This host's part of reconciliation: after any crash, ledger, processes and store agree again.

It looks at what is there and compares, whatever was missed (level-triggered, as Kubernetes' controllers are), so it
may be run at any time, twice or too late. It decides nothing: the ledger's answer says what to stop and to delete.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread

from elastic_core.crashing import crash_here
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.launch.launcher import GroupStatus, Launcher
from elastic_core.protocol.process_groups import ExitKind, ExitReport, ReconcileAnswer
from elastic_core.protocol.service import PoolControl, ServiceControl
from elastic_core.state.stores.litter import NotSwept, sweep
from elastic_core.state.stores.store import CheckpointStore

log = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 5.0  # for processes that nobody owns: they can commit nothing, so there is little to wait for
KEEP_SECONDS = 600.0  # that a dead group stays visible
SWEEP_SECONDS = 50.0  # that the store may take, deleting and looking for litter: the next minute has more to do
LITTER_SECONDS = 3600.0  # since the last write of a directory that nobody has committed, before it is litter


def reconcile_host(control: PoolControl, launcher: Launcher, clock: Callable[[], float] = time.time) -> ReconcileAnswer:
    """Report dead groups, end those that nobody owns, forget old ones. `clock`: the ledger's, of this host.

    The answer says what is left to do elsewhere: segments' runs, and the store (`sweep_store`). Dead groups are
    reported each time until they are forgotten: the ledger has heard it before, or needs to.
    """
    listed_at = clock()
    groups = launcher.groups()
    for group in groups:
        if not group.alive:
            status = _poll(launcher, group.origin_epoch)
            report = status.exit if status else None
            report = report or ExitReport(kind=ExitKind.INFRASTRUCTURE, error="vanished")
            with _of_one_group(group.origin_epoch):
                control.process_group_gone(group.origin_epoch, report)
    crash_here("reconcile.reported")
    answer = control.reconcile(groups, listed_at)
    for origin_epoch in answer.stop:
        with _of_one_group(origin_epoch):
            launcher.stop(origin_epoch, STOP_GRACE_SECONDS)
    for group in groups:
        status = _poll(launcher, group.origin_epoch)
        if status and status.ended_at and clock() - status.ended_at > KEEP_SECONDS:
            with _of_one_group(group.origin_epoch):
                launcher.forget(group.origin_epoch)
    return answer


def _poll(launcher: Launcher, origin_epoch: int) -> GroupStatus | None:
    with _of_one_group(origin_epoch):
        return launcher.poll(origin_epoch)
    return None


@contextmanager
def _of_one_group(origin_epoch: int) -> Iterator[None]:
    """A folder that cannot be used, or a report that is refused, is the trouble of its own group alone: the others' go
    on. A ledger that is away is met again by who asks it next."""
    try:
        yield
    except (InfrastructureError, UserError, OSError) as error:
        log.error(f"the group of epoch {origin_epoch} was passed over: {error}")


def sweep_store(
    control: ServiceControl, store: CheckpointStore, answer: ReconcileAnswer, clock: Callable[[], float] = time.time
) -> None:
    """Delete what the ledger has given up, and the litter of active jobs and of those that ended lately. Raises
    `InfrastructureError`: try again.

    What could be deleted is deleted, and the ledger told of it, also where something else could not (`NotSwept`).
    """
    removable = {record.checkpoint_id for record in answer.removable_checkpoints}
    jobs = {*answer.active_jobs, *answer.ended_lately, *(record.job_id for record in answer.removable_checkpoints)}
    # Epochs before checkpoints: what one of them commits in between is then among the checkpoints; what a later epoch
    # writes is younger than the grace.
    epochs = control.live_epochs(sorted(jobs))
    checkpoints = [stored for job in jobs for stored in control.stored_checkpoints(job)]
    try:
        swept = sweep(
            store,
            answer.removable_checkpoints,
            {stored.uri for stored in checkpoints if stored.checkpoint_id not in removable},
            clock(),
            LITTER_SECONDS,
            jobs=jobs,
            live_epochs=epochs,
        )
    except NotSwept as error:
        control.swept(error.swept.checkpoint_ids)
        raise
    crash_here("sweep.deleted")
    control.swept(swept.checkpoint_ids)


def sweep_store_in_time(
    control: ServiceControl, store: CheckpointStore, answer: ReconcileAnswer, last: Callable[[], object] = lambda: None
) -> None:
    """`sweep_store`, and `last` whatever came of it. But a store that hangs, with however many requests and time-outs,
    holds nobody up for longer than `SWEEP_SECONDS`. Raises `InfrastructureError` then, and what hangs ends with this
    process."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            try:
                sweep_store(control, store, answer)
            finally:
                last()
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            done.set_exception(error)
        else:
            done.set_result(None)

    thread = Thread(target=run, name="sweep-store", daemon=True)
    thread.start()
    thread.join(SWEEP_SECONDS)
    if not done.done():
        raise InfrastructureError(
            f"the sweep of {store.url} has not ended within {SWEEP_SECONDS:g} s: the store, or the control API, is "
            "slow or hangs. What was deleted is told to the ledger by the next one"
        )
    done.result()
