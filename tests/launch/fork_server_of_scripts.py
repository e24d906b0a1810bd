"""The platform's fork server with scripted workers among what it may run, and nothing large loaded."""

from __future__ import annotations

import sys
from importlib import import_module

from elastic_core.launch import fork_server

SCRIPTS = {"tests.launch.scripted_worker": "forked_main", "tests.launch.probe": "main"}


def load() -> None:
    fork_server.ENTRIES = {**fork_server.ENTRIES, **SCRIPTS}
    for name in (*SCRIPTS, "elastic_core.launch.agent", "elastic_core.launch.delivery"):
        import_module(name)


if __name__ == "__main__":
    fork_server.main(sys.argv[1:], load)
