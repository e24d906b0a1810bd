"""Brings what agents say to the ledger, a group's exit report and which slots it has left, with patience: the API may
be away just then.

Best effort: whoever gives up here leaves exit.json behind, which reconciliation (`launch.host_reconcile`) reports. The
pauses between tries grow and are random, so that the agents of a host do not come all at once.
"""

from __future__ import annotations

import logging
import random
import signal
import time
from collections.abc import Callable, Sequence

from elastic_core.domain import Slot
from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.host.messages import ORDER, SlotId, WorkerSettings
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.http_client import HttpTrainer
from elastic_core.protocol.process_groups import ExitReport

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 1800.0  # afterwards reconciliation finds exit.json
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 15.0


def deliver(run_dir: RunDir, report: ExitReport, token: str, patience: float = PATIENCE_SECONDS) -> bool:
    """Tell the ledger, with the agent's token, for `patience` seconds at most; whether it has heard.

    Ends early when told to (SIGTERM), or when the ledger refuses the report.
    """
    settings = run_dir.read(WorkerSettings)
    if settings is None:
        log.warning("the run dir has vanished: no report")
        return False
    return deliver_to(settings.control_url, report, token, patience, lambda: (run_dir.path / ORDER).exists())


def deliver_to(
    control_url: str, report: ExitReport, token: str, patience: float, wanted: Callable[[], bool] = lambda: True
) -> bool:
    """The same to a control API, as long as the report is `wanted`."""
    deadline, said = time.monotonic() + patience, f"{report.kind} {report.error}".rstrip()

    def pause(seconds: float) -> bool:
        asked_to_end = signal.sigtimedwait((signal.SIGTERM, signal.SIGINT), seconds)
        if asked_to_end or time.monotonic() > deadline:
            log.warning("giving up the report: reconciliation will find exit.json")
            return False
        return True

    def is_wanted() -> bool:
        if not wanted():
            log.warning("the run dir has vanished, or the group was forgotten: no report")
            return False
        return True

    try:
        return _until_heard(lambda trainer: trainer.exited(report), control_url, token, said, is_wanted, pause)
    except ElasticError as error:
        log.error(f"the ledger refused the report {report.kind}: {error}")
        return False


def tell_left(
    control_url: str, token: str, epoch: int, slots: Sequence[SlotId], wanted: Callable[[], bool] = lambda: True
) -> bool:
    """Nothing of the group is left on these slots, which the order of this epoch does not name: until the ledger has
    heard, as long as that is `wanted`. Whether it has taken it: it refuses what is of an epoch that is over."""
    gone = [Slot(slot.node, slot.index, slot.type) for slot in slots]
    said = f"that nothing is left on {', '.join(map(str, slots))}"

    def pause(seconds: float) -> bool:
        time.sleep(seconds)
        return True

    try:
        return _until_heard(lambda trainer: trainer.release_slots(gone, epoch), control_url, token, said, wanted, pause)
    except ElasticError as error:
        log.warning(f"the ledger does not take it {said}: {error}")
        return False


def _until_heard(
    call: Callable[[HttpTrainer], None], control_url: str, token: str, said: str, wanted: Callable[[], bool],
    pause: Callable[[float], bool],
) -> bool:  # fmt: skip
    """Whether the ledger has heard. `pause`: waits so many seconds; False: give up. Raises `ElasticError` where the
    ledger refuses."""
    seconds = FIRST_PAUSE
    while wanted():
        try:
            call(HttpTrainer(control_url, token, patience_seconds=0))
        except InfrastructureError as error:
            log.warning(f"could not report {said}, will try again: {error}")
        else:
            log.info(f"reported {said}")
            return True
        if not pause(seconds * random.uniform(0.5, 1)):
            return False
        seconds = min(LONGEST_PAUSE, 2 * seconds)
    return False
