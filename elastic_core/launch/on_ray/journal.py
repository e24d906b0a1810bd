"""What a group's coordinator says to whoever asks over HTTP: lines of JSON among what its driver prints.

Ray keeps them with the driver's output; the last line of a kind holds.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from typing import Any

from elastic_core.domain import from_json, to_json
from elastic_core.protocol.process_groups import ExitReport

LOGS = "elastic"  # below Ray's own folder of logs on each node, which its agent serves to who has the token
MOST_BYTES = 128 * 1024  # that are kept of what a driver has printed which says but one thing, again and again
_MARK = "elastic-journal "


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
        if line.startswith(_MARK):
            entry = json.loads(line.removeprefix(_MARK))
            if entry["kind"] == kind:
                return entry["value"]
    return None


def say_exit(report: ExitReport) -> None:
    say("exit", to_json(report))


def exit_report(output: str) -> ExitReport | None:
    value = last(output, "exit")
    return None if value is None else from_json(ExitReport, value)


def logs_folder(namespace: str, origin_epoch: int) -> str:
    """Where what a group prints lies, below Ray's folder of logs."""
    return os.path.join(LOGS, namespace, str(origin_epoch))
