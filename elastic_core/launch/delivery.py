"""Brings a group's exit report to the ledger, with patience: the API may be away just then."""

from __future__ import annotations

import random
import signal
import time

from elastic_core.control.client import HttpTrainer
from elastic_core.control.contract import ExitReport
from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.launch.group import log
from elastic_core.launch.rundir import RunDir

PATIENCE_SECONDS = 1800.0  # afterwards reconciliation finds exit.json
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 15.0


def deliver(run_dir: RunDir, report: ExitReport, patience: float = PATIENCE_SECONDS) -> bool:
    """Tell the ledger, for `patience` seconds at most; whether it has heard.

    Ends early when told to (SIGTERM), or when the ledger refuses the report.
    """
    settings = run_dir.read("settings.json")
    deadline, pause = time.monotonic() + patience, FIRST_PAUSE
    while settings is not None and (run_dir.path / "order.json").exists():
        try:
            HttpTrainer(settings["control_url"], run_dir.order().token, patience_seconds=0).exited(report)
        except InfrastructureError as error:
            log(f"could not report {report.kind!r}, will try again: {error}")
        except ElasticError as error:
            log(f"the ledger refused the report {report.kind!r}: {error}")
            return False
        else:
            log(f"reported {report.kind!r} {report.error}")
            return True
        told_to_end = signal.sigtimedwait((signal.SIGTERM, signal.SIGINT), pause * random.uniform(0.5, 1))
        if told_to_end or time.monotonic() > deadline:
            log("giving up the report: reconciliation will find exit.json")
            return False
        pause = min(LONGEST_PAUSE, 2 * pause)
    log("the run dir has vanished, or the group was forgotten: no report")
    return False
