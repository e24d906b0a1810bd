"""Every service carries a mark of its home in its environment, which all its descendants inherit.

So a process that lost its parent (a killed supervisor, a killed scheduler's workers) is still known for what
it is, and is ended by pid and start time. Process groups of training jobs do not carry these marks: they
outlive a restart of the services on purpose.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from elastic_core.host.process import ProcessId, marked

HOME_MARK = "ELASTIC_SERVICES_OF"
PROGRAM_MARK = "ELASTIC_SERVICE"


def home_mark(home: Path) -> str:
    return hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16]


def marks(home: Path, program: str) -> dict[str, str]:
    # setproctitle and its like overwrite the environment as /proc shows it, mark and all, unless told not to
    return {HOME_MARK: home_mark(home), PROGRAM_MARK: f"{home_mark(home)}/{program}", "SPT_NOENV": "1"}


def of_home(home: Path) -> list[ProcessId]:
    return marked(HOME_MARK, home_mark(home))


def of_program(home: Path, program: str) -> list[ProcessId]:
    return marked(PROGRAM_MARK, f"{home_mark(home)}/{program}")
