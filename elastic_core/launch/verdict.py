"""From exit codes and error files to an `ExitReport`: user's exception, infrastructure, stopped, or a boundary."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

from elastic_core.control.contract import ExitReport
from elastic_core.domain import to_json
from elastic_core.launch.group import Ended
from elastic_core.launch.rundir import RunDir

BOUNDARY, USER_ERROR, INFRASTRUCTURE, STOPPED = 0, 10, 11, 12  # exit codes of a worker
TAIL_LINES, TAIL_BYTES = 30, 8192


def classify(ended: Ended, errors: Mapping[int, Mapping[str, str]], log_tails: Mapping[int, str]) -> ExitReport:
    """What became of the group. `errors` are the error-rank files by rank, `log_tails` the ends of the ranks' logs.

    A user's exception anywhere outweighs all else: the other ranks' failures follow from it. Among infrastructure
    faults a signal outweighs an exit code, since the others lose their connection to the one that was killed; then
    the first counts.
    """
    codes = tuple(ended.codes[rank] for rank in sorted(ended.codes))

    def report(kind: str, error: str = "", rank: int | None = None) -> ExitReport:
        tail = log_tails.get(rank, "") if rank is not None else ""
        return ExitReport(kind=kind, error=error, log_tail=tail, exit_codes=codes)

    if ended.failure:
        return report("infrastructure", ended.failure)
    for rank in sorted(ended.codes):
        if ended.codes[rank] == USER_ERROR:
            error = errors.get(rank, {}).get("error") or _last_line(log_tails.get(rank, ""))
            return report("user_error", error or f"rank {rank} reported a user's exception without saying which", rank)
    if all(code == BOUNDARY for code in codes):
        return report("boundary")
    culprits = [rank for rank in ended.order if _faulty(rank, ended)]
    if culprits:
        rank = min(culprits, key=lambda rank: ended.codes[rank] >= 0)  # stable: by time within each kind
        return report("infrastructure", _describe(rank, ended.codes[rank], errors.get(rank, {})), rank)
    if ended.killed:
        named = ", ".join(str(rank) for rank in sorted(ended.killed))
        return report(
            "stopped", f"rank {named} did not end within {ended.stop_grace or 0:g} s of being asked to; killed"
        )
    return report("stopped", "stopped without a commit")


def settle(run_dir: RunDir, ended: Ended) -> ExitReport:
    """Classify a group whose processes are all gone, and say so in exit.json (unless the run dir has vanished)."""
    errors = {rank: run_dir.read(f"error-rank{rank}.json") or {} for rank in ended.codes}
    tails = {rank: tail(run_dir.log(rank)) for rank in ended.codes}
    report = classify(ended, errors, tails)
    if run_dir.path.exists():
        run_dir.write("exit.json", to_json(report))
    return report


def tail(path: Path) -> str:
    """The last lines of a log file, at most 30 lines and 8 KiB."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-TAIL_LINES:])


def _faulty(rank: int, ended: Ended) -> bool:
    """Whether the rank failed by itself, rather than by our wish."""
    code = ended.codes[rank]
    by_our_wish = rank in ended.killed or (code == -signal.SIGTERM and ended.stop_grace is not None)
    return code not in (BOUNDARY, STOPPED) and not by_our_wish


def _describe(rank: int, code: int, error: Mapping[str, str]) -> str:
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
        hint = " (the kernel kills so when memory is short)" if -code == signal.SIGKILL else ""
        return f"rank {rank} was killed by {name}{hint}"
    said = f": {error['error']}" if error.get("error") else ""
    return f"rank {rank} ended with exit code {code}{said}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
