"""From exit codes and error files to an `ExitReport`: user's exception, infrastructure, stopped, or a boundary.

The one fault that began it is looked for, since all other ranks fail with it: their collectives break. It is told by
order of death and by kind, never by reading logs; the end of the culprit's log goes along for people.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping
from pathlib import Path

from elastic_core.errors import InfrastructureError
from elastic_core.host.exits import ExitCode
from elastic_core.host.messages import WorkerError
from elastic_core.host.rundir import RunDir
from elastic_core.launch.workers.worker_group import GroupOutcome
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from elastic_core.text import tail

log = logging.getLogger(__name__)

TAIL_LINES, TAIL_BYTES = 30, 8192


def classify(outcome: GroupOutcome, errors: Mapping[int, str], log_tails: Mapping[int, str]) -> ExitReport:
    """What became of the group. `errors` are what ranks say ended them, `log_tails` the ends of the ranks' logs.

    A user's exception anywhere outweighs all else: the other ranks' failures follow from it; then that training
    diverged. Among infrastructure
    faults a signal outweighs an exit code, since the others lose their connection to the one that was killed; then
    the first counts.
    """
    codes = outcome.codes

    def report(kind: ExitKind, error: str = "", rank: int | None = None) -> ExitReport:
        log_tail = log_tails.get(rank, "") if rank is not None else ""
        exit_codes = tuple(codes[rank] for rank in sorted(codes))
        return ExitReport(kind=kind, error=error, log_tail=log_tail, exit_codes=exit_codes)

    if outcome.never_began:
        return report(ExitKind.STOPPED, "it was stopped before it had begun")
    if outcome.failure:
        return report(ExitKind.INFRASTRUCTURE, outcome.failure)
    for rank in sorted(codes):
        if codes[rank] == ExitCode.USER_ERROR:
            error = errors.get(rank) or _last_line(log_tails.get(rank, ""))
            error = error or f"rank {rank} reported a user's exception without saying which"
            return report(ExitKind.USER_ERROR, error, rank)
    diverged = [rank for rank in sorted(codes) if codes[rank] == ExitCode.DIVERGED]
    if diverged:
        error = errors.get(diverged[0], "").partition("Diverged: ")[2]
        return report(ExitKind.DIVERGED, error or "training diverged, and no rank said how", diverged[0])
    if all(code == ExitCode.DONE for code in codes.values()):
        return report(ExitKind.BOUNDARY)
    culprits = [rank for rank in outcome.order if _failed_by_itself(rank, outcome)]
    if culprits:
        rank = min(culprits, key=lambda rank: codes[rank] >= 0)  # stable: by time within each kind
        return report(ExitKind.INFRASTRUCTURE, _describe(rank, codes[rank], errors.get(rank, "")), rank)
    if outcome.killed:
        ranks, grace = ", ".join(map(str, sorted(outcome.killed))), outcome.stop_grace or 0
        return report(ExitKind.STOPPED, f"rank {ranks} did not end within {grace:g} s of being asked to; killed")
    return report(ExitKind.STOPPED, "stopped without a commit")


def report_exit(run_dir: RunDir, outcome: GroupOutcome) -> ExitReport:
    """Classify a group whose processes are all gone, and say so in exit.json (unless the run dir has vanished)."""
    errors = {rank: _error(run_dir, rank) for rank in outcome.codes}
    tails = {rank: log_tail(run_dir.log(rank)) for rank in outcome.codes}
    report = classify(outcome, errors, tails)
    if run_dir.path.exists():
        keep_report(run_dir, report)
    return report


def keep_report(run_dir: RunDir, report: ExitReport) -> None:
    """In exit.json. A disk that takes nothing is logged: the ledger is still told by whoever has the report."""
    try:
        run_dir.write_exit(report)
    except OSError as error:
        log.error(f"exit.json of {run_dir.path} cannot be written, and the report goes on without it: {error}")


def _error(run_dir: RunDir, rank: int) -> str:
    try:
        message = run_dir.read(WorkerError, rank)
    except InfrastructureError as error:  # the report must go out, with the end of the log in its place
        log.warning(str(error))
        return ""
    return message.error if message else ""


def log_tail(path: Path) -> str:
    """The end of a log as an exit report carries it: at most 30 lines and 8 KiB."""
    return tail(path, TAIL_LINES, TAIL_BYTES)


def _failed_by_itself(rank: int, outcome: GroupOutcome) -> bool:
    """Whether the rank failed, rather than ended because its agent stopped it."""
    code = outcome.codes[rank]
    stopped_by_agent = rank in outcome.killed or (code == -signal.SIGTERM and outcome.stop_grace is not None)
    return code not in (ExitCode.DONE, ExitCode.STOPPED) and not stopped_by_agent


def _describe(rank: int, code: int, error: str) -> str:
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
        hint = " (the kernel kills so when memory is short)" if -code == signal.SIGKILL else ""
        return f"rank {rank} was killed by {name}{hint}"
    return f"rank {rank} ended with exit code {code}" + (f": {error}" if error else "")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
