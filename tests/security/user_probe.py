"""A user's code that reaches for what is not its job's: what it could do goes to a file, or into its answer."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastic_core.host.worker_user.identity import WorkerUser
from elastic_core.train.entry import session_task
from elastic_core.train.session import Session
from tests.security.worker_namespace import PROJECT
from tests.train.tasks import Regression, recorded

CANARIES = ("secrets", "airflow", "mlflow", "postgres", "services", "logs", "fork-server", "store-access")
_PTRACE_ATTACH = 16
_libc = ctypes.CDLL(None, use_errno=True)


def reach(reads: Mapping[str, str], writes: Mapping[str, str], pids: Mapping[str, int]) -> dict[str, Any]:
    """Who this is, and what of it could be done: all three by names that the caller knows."""
    attempts: dict[str, Callable[[], object]] = {f"read {name}": _reading(path) for name, path in reads.items()}
    attempts |= {f"write {name}": _writing(path) for name, path in writes.items()}
    for name, pid in pids.items():
        attempts |= {f"read {part} of {name}": _reading(f"/proc/{pid}/{part}") for part in ("environ", "mem", "maps")}
        attempts |= {f"signal {name}": _signalling(pid), f"trace {name}": _tracing(pid)}
    attempts |= {"become root": lambda: os.setuid(0), "lower its niceness": lambda: os.nice(-20)}
    could = [name for name, attempt in attempts.items() if _succeeds(attempt)]
    return {"ids": [*os.getresuid(), *os.getresgid(), *os.getgroups()], "tried": len(attempts), "could": could}


def _reading(path: str) -> Callable[[], object]:
    return lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").close()


def _writing(path: str) -> Callable[[], object]:
    return lambda: (Path(path) / "planted.py").write_text("print('planted')")


def _signalling(pid: int) -> Callable[[], object]:
    return lambda: os.kill(pid, 0)


def _tracing(pid: int) -> Callable[[], object]:
    def trace() -> None:
        if _libc.ptrace(_PTRACE_ATTACH, pid, None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    return trace


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


@session_task(dataset_samples=lambda params: params["rows"])
def reaching(session: Session) -> None:
    """Trains, and before that tries what `session.params["targets"]` names, and its own agent."""
    targets = session.params["targets"]
    pids = {"agent": os.getppid(), **targets["pids"]}
    found = reach(targets["reads"], targets["writes"], pids)
    (Path(session.params["folder"]) / f"reach-rank{session.rank}").write_text(json.dumps(found))
    recorded(session)


class Reaching(Regression):
    """Says in its metrics, or by an error where it is only looked at, what it could do."""

    class Params(Regression.Params):
        targets: dict[str, dict[str, Any]]
        report: str

    params: Any

    def dataset(self) -> Any:
        self._report("inspected")
        return super().dataset()

    def evaluate(self, model: Any) -> dict[str, float]:
        self._report("evaluated")
        return super().evaluate(model)

    def model(self) -> Any:
        self._report("made")
        return super().model()

    def _report(self, occasion: str) -> None:
        found = reach(self.params.targets["reads"], self.params.targets["writes"], self.params.targets["pids"])
        (Path(self.params.report) / occasion).write_text(json.dumps(found))


def targets(home: Path) -> dict[str, Any]:
    """What users' code is to reach for: files and folders of root's, places to write, processes."""
    folders = {name: str(home / name) for name in ("", *CANARIES, "run", "memory", "store")}
    files = {f"{name}/canary": str(home / name / "canary") for name in CANARIES}
    writes = {name: str(PROJECT / name) for name in ("", "dags", "plugins", "elastic_core")}
    writes |= {f"home {name}": str(home / name) for name in ("", "run", "memory", "store")}
    return {"reads": {**folders, **files}, "writes": writes, "pids": {"services": os.getpid()}}


def assert_reached_nothing(found: dict[str, Any], user: WorkerUser) -> None:
    assert found["ids"] == [user.uid] * 3 + [user.gid] * 3
    assert found["tried"] > 20
    assert found["could"] == []
