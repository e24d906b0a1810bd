"""A user's code that looks for access to the store beyond its own job's: what it finds goes to a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from elastic_core.host.messages import WorkerSettings
from elastic_core.host.rundir import RUN_DIR, RunDir
from elastic_core.state.store_access.brokered_store import open_for_job
from elastic_core.state.store_access.store_grants import StoreAccess
from elastic_core.train.entry import session_task
from elastic_core.train.session import Session
from tests.train.tasks import recorded


@session_task(dataset_samples=lambda params: params["rows"])
def probing(session: Session) -> None:
    """Trains, and before that tries the folder of the job `session.params["other"]`."""
    run_dir = RunDir(Path(os.environ[RUN_DIR]))
    settings, own, other = run_dir.require(WorkerSettings), run_dir.order().job_id, session.params["other"]
    store = open_for_job(settings.store, settings.s3_endpoint, run_dir.require(StoreAccess))
    found = {
        "environment": {name: value for name, value in os.environ.items() if name.startswith("AWS_")},
        "read": outcome(lambda: store.get(f"{other}/canary").decode()),
        "written": outcome(lambda: store.put(f"{other}/canary", b"changed")),
        "listed": outcome(lambda: sorted(store.list(other))),
        "deleted": outcome(lambda: store.delete(other)),
        "own": outcome(lambda: len(list(store.list(f"{own}/"))) >= 0),
    }
    (Path(session.params["folder"]) / f"probe-rank{session.rank}").write_text(json.dumps(found))
    recorded(session)


def outcome(attempt: Callable[[], object]) -> object:
    try:
        return attempt()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is to be known
        return f"{type(error).__name__}: {error}"
