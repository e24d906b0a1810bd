"""What the platform costs a training: steps a second of the examples under it, over the bare loop in plain torch.

    .venv/bin/python -m benchmarks.overhead [--quick]

The whole platform runs (PostgreSQL, Airflow, MLflow, in a folder of its own, under its default policy). Its services
are pinned to one core and what trains to another, and the same services stand idle beside the bare loop (`bare_loop`):
what is compared is what the platform does in and for a training, heartbeats, reports, metrics in MLflow, agreement on
each step, the data order, and an asynchronous checkpoint every ten seconds. One worker each, hence no exchange. Both
are measured in turns, several times. A job's steps are counted from heartbeat to heartbeat, in the middle of a segment.

Bar: the median over the turns of each example is at least 0.97 of the bare loop's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import Engine, create_engine, text

from benchmarks.common.report import Report
from elastic_core.domain import SegmentState
from elastic_core.services.secrets import read_secret
from elastic_core.spec import ClusterSpec, parse_job_spec
from tests.e2e.platform import Platform, eventually

TRAINS, SERVES = 0, 1  # cores
SECONDS, TURNS = 40.0, 5
QUICK_SECONDS, QUICK_TURNS = 12.0, 2
WARM_SECONDS = 10.0  # of a job, that are not counted
LEAST = 0.97
BEATS = text("""
    SELECT h.step, h.sent_at, h.pids FROM heartbeats h JOIN leases l ON l.epoch = h.epoch
    WHERE l.job_id = :job AND l.released_at IS NULL
""")


@dataclass(frozen=True)
class Example:
    entry_point: str
    params: dict[str, Any]
    batch: int

    @property
    def name(self) -> str:
        return self.entry_point.partition(":")[2]


EXAMPLES = (
    Example("examples.digits:Digits", {"width": 64}, 128),
    Example("examples.bytes_lm:BytesLM", {}, 32),
    Example("examples.tabular:Tabular", {}, 256),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two turns of twelve seconds")
    quick = parser.parse_args().quick
    seconds, turns = (QUICK_SECONDS, QUICK_TURNS) if quick else (SECONDS, TURNS)
    report = Report("overhead", quick=quick)
    pin(os.getpid(), SERVES)  # and all that is started from here, but for who is pinned anew
    home = Path(tempfile.mkdtemp(prefix="elastic-overhead-"))
    platform = Platform(home)
    try:
        platform.up()
        cluster = {"nodes": [{"name": "node", "type": "cpu", "slots": 1}]}
        platform.control.set_cluster(ClusterSpec.model_validate(cluster))
        engine = create_engine(read_secret(platform.settings, "ledger_url"))
        measured = [
            (one, [(bare(one, seconds), under(platform, engine, one, seconds, turn)) for turn in range(turns)])
            for one in EXAMPLES
        ]
        engine.dispose()
    finally:
        platform.elastic("down", check=False)
        shutil.rmtree(home, ignore_errors=True)
    rows = []
    for example, pairs in measured:
        ratios = [job / loop for loop, job in pairs]
        report.figure(example.name, [{"bare": loop, "job": job} for loop, job in pairs])
        rows.append((example.name, example.batch, median(loop for loop, _ in pairs), median(job for _, job in pairs),
                     median(ratios), min(ratios), max(ratios)))  # fmt: skip
        got = median(ratios)
        report.bar(f"{example.name}: under the platform, of the bare loop", want=f">= {LEAST}", got=round(got, 3),
                   ok=got >= LEAST)  # fmt: skip
    columns = ("example", "batch", "bare, steps/s", "job, steps/s", "ratio, median", "least", "most")
    report.table("Steps a second, one worker on a core of its own", columns, rows)
    return report.finish()


def bare(example: Example, seconds: float) -> float:
    wanted = {"entry_point": example.entry_point, "params": example.params, "batch": example.batch, "core": TRAINS,
              "seconds": seconds}  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.overhead.bare_loop", json.dumps(wanted)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def under(platform: Platform, engine: Engine, example: Example, seconds: float, turn: int) -> float:
    job_id = f"{example.name.lower()}-{turn}"
    spec = {
        "name": job_id, "entry_point": example.entry_point, "params": example.params, "work": {"epochs": 1_000_000},
        "batch": {"min": example.batch, "max": example.batch}, "slots": {"min": 1, "max": 1},
        "segment": {"seconds": 3600}, "checkpoints": {"interval_seconds": 10},
    }  # fmt: skip
    platform.control.start_job(job_id, parse_job_spec(spec))
    eventually(lambda: trains(platform, job_id), 120, "the job trains")
    pids = beat(engine, job_id).pids
    for pid in pids:
        pin(pid, TRAINS)
    time.sleep(WARM_SECONDS)
    first = beat(engine, job_id)
    time.sleep(seconds)
    last = beat(engine, job_id)
    assert last.pids == pids, "the process that was pinned took the steps"
    platform.control.cancel(job_id, "measured")
    eventually(lambda: not platform.control.snapshot().jobs, 60, "its slot is free")
    return (last.step - first.step) / (last.sent_at - first.sent_at)


def trains(platform: Platform, job_id: str) -> bool:
    """Its run in Airflow has yet to record it at first."""
    jobs = {job.job_id: job for job in platform.control.jobs(active_only=True)}
    return job_id in jobs and jobs[job_id].segment_state is SegmentState.RUNNING


def beat(engine: Engine, job_id: str) -> Any:
    """The last heartbeat's step, when it was sent, and of which processes."""
    with engine.connect() as connection:
        return connection.execute(BEATS, {"job": job_id}).one()


def pin(pid: int, core: int) -> None:
    """All threads of a process, and what they start from now on."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {core})


if __name__ == "__main__":
    sys.exit(main())
