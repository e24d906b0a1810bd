"""What a group's coordinator says to whoever asks over HTTP: lines of JSON among what its driver prints.

Ray keeps them with the driver's output; the last line of a kind holds.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from typing import Any

from elastic_core.domain import from_json, to_json
from elastic_core.protocol.process_groups import ExitReport

LOGS = "elastic"  # below Ray's own folder of logs on each node, which its agent serves to who has the token
MOST_BYTES = 128 * 1024  # that are kept of what a driver has printed which says but one thing, again and again
_MARK = "elastic-journal "
_LOG_URL = re.compile(r"https?://[0-9A-Za-z.:\[\]-]+/logs/[0-9A-Za-z._/-]+\.log")


def say(kind: str, value: Any) -> None:
    """Print one line."""
    sys.stdout.write(f"{_MARK}{json.dumps({'kind': kind, 'value': value})}\n")
    sys.stdout.flush()


def say_last(kind: str, value: Any) -> None:
    """As `say`, where only the last line counts: what was printed before goes once it is much, since whoever asks reads
    all of it. Ray has a driver print to the end of a file."""
    output = sys.stdout.fileno()
    if stat.S_ISREG(os.fstat(output).st_mode) and os.fstat(output).st_size > MOST_BYTES:
        os.ftruncate(output, 0)
    say(kind, value)


def last(output: str, kind: str) -> Any | None:
    """The value that was said last; None where none was."""
    for line in reversed(output.splitlines()):
        entry = _entry(line)
        if entry.get("kind") == kind:
            return entry.get("value")
    return None


def _entry(line: str) -> dict[str, Any]:
    """Nothing for a line that `say` did not print, or not to its end: a full disk cuts it, and a job's own code may
    write to the file that Ray keeps of a driver's output."""
    if not line.startswith(_MARK):
        return {}
    try:
        entry = json.loads(line.removeprefix(_MARK))
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def say_exit(report: ExitReport) -> None:
    say("exit", to_json(report))


def exit_report(output: str) -> ExitReport | None:
    """That was said last; None where none was, or what was said is none."""
    value = last(output, "exit")
    try:
        return None if value is None else from_json(ExitReport, value)
    except ValueError:
        return None


def log_urls(output: str) -> list[str]:
    """Where each rank's log is read, by rank."""
    value = last(output, "logs")
    urls = value if isinstance(value, list) else []
    return urls if all(isinstance(url, str) and _LOG_URL.fullmatch(url) for url in urls) else []


def logs_folder(namespace: str, origin_epoch: int) -> str:
    """Where what a group prints lies, below Ray's folder of logs."""
    return os.path.join(LOGS, namespace, str(origin_epoch))
