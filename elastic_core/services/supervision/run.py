"""`python -m elastic_core.services.supervision.run FILE`: becomes the program that FILE (JSON, 0600) describes.

Between the supervisor and every program, for what the supervisor cannot do: end what a killed predecessor left
behind, and take secrets from their files at the last moment. Small on purpose: it runs at every restart.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from elastic_core import logs
from elastic_core.host.process import end_processes
from elastic_core.services.supervision.marks import marks, of_program

log = logging.getLogger("elastic_core.services.supervision.run")  # in its own process `__name__` is "__main__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    home: str
    program: str
    command: tuple[str, ...]
    environment: dict[str, str]
    secrets: dict[str, str]  # variable: file
    user: str | None

    def json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def main(path: str) -> None:
    launch = Launch(**json.loads(Path(path).read_text()))
    logs.configure(launch.program)
    home = Path(launch.home)
    earlier = [process for process in of_program(home, launch.program) if process.pid != os.getpid()]
    stubborn = end_processes(earlier, 3.0)
    if stubborn:
        sys.exit(f"processes of an earlier {launch.program} cannot be ended: {[process.pid for process in stubborn]}")
    secrets = {name: Path(file).read_text().strip() for name, file in launch.secrets.items()}
    environment = os.environ | launch.environment | secrets | marks(home, launch.program)
    if launch.user:
        _become(launch.user)
    log.info("starting")
    os.execvpe(launch.command[0], launch.command, environment)


def _become(user: str) -> None:
    import pwd

    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


if __name__ == "__main__":
    main(sys.argv[1])
