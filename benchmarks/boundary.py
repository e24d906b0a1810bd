"""What a boundary costs: from the last step of a segment to the first step of the next, and where it goes.

    .venv/bin/python -m benchmarks.boundary [--quick]

The whole platform runs (PostgreSQL, Airflow, MLflow, on this machine, in a folder of its own), with one job on 2
CPU slots. Its rival on the same work in the same run is the boundary of a platform that restarts the processes at
every boundary:

- in place: the slots stay; the lease passes on inside the commit and the processes go straight on;
- resize: another holder asks for one of the two slots, later gives it back: 2 -> 1 -> 2 slots. The processes end,
  Airflow's next run is granted its slots, starts new processes, and they restore the checkpoint.

Phases of a resize: `save and commit` (last step to commit), `processes end` (to slots freed), `Airflow and grant`
(to the next lease), `launch` (Airflow's task, agent, to the workers' first heartbeat), `import and restore` (to the
first step).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, text

from benchmarks.report import Report, spread
from elastic_core.control.contract import ExitReport, JobFacts
from elastic_core.domain import JobState, SegmentState
from elastic_core.services.secrets import read_secret
from elastic_core.spec import ClusterSpec, JobSpec
from elastic_core.spec.form import WHOLE_SPEC
from tests.e2e.platform import Platform, eventually

PHASES = ("save and commit", "processes end", "Airflow and grant", "launch", "import and restore")
BOUNDARIES = text(
    """
    SELECT a.id AS before, b.id AS after, b.handed_over, x.num_slots AS slots_before, y.num_slots AS slots_after,
           (c.timings->>'last_step_at')::float8 AS last_step_at, c.committed_at, x.released_at,
           y.granted_at, y.started_at, (d.timings->>'first_step_at')::float8 AS first_step_at
    FROM segments a
    JOIN segments b ON b.follows = a.id
    JOIN checkpoints c ON c.id = a.end_checkpoint_id
    JOIN leases x ON x.epoch = c.epoch
    JOIN checkpoints d ON d.id = (SELECT min(e.id) FROM checkpoints e WHERE e.segment_id = b.id)
    JOIN leases y ON y.epoch = d.epoch
    WHERE a.job_id = :job AND b.attempt = 0
    ORDER BY b.index
    """
)


@dataclass(frozen=True, slots=True)
class Boundary:
    """Seconds. `phases` follow `PHASES` after a resize; in place only the whole and the commit are known."""

    in_place: bool
    slots: str
    whole: float
    phases: tuple[float, ...]

    @staticmethod
    def of(row: Any) -> Boundary:
        instants: Sequence[float] = (row.last_step_at, row.committed_at)
        if not row.handed_over:
            instants = (*instants, row.released_at, row.granted_at, row.started_at)
        ends = (*instants, row.first_step_at)
        phases = tuple(after - before for before, after in pairwise(ends))
        return Boundary(row.handed_over, f"{row.slots_before} -> {row.slots_after}", sum(phases), phases)


def spec(name: str, **changes: Any) -> JobSpec:
    base = {
        "name": name,
        "entry_point": "examples.digits:Digits",
        "work": {"epochs": 100_000},
        "batch": {"min": 64, "max": 64},
        "slots": {"min": 1, "max": 2},
        "segment": {"seconds": 3.0},
    }
    return JobSpec.model_validate(base | changes)


def boundaries(engine: Engine, job_id: str) -> list[Boundary]:
    with engine.connect() as connection:
        return [Boundary.of(row) for row in connection.execute(BOUNDARIES, {"job": job_id})]


def count(engine: Engine, job_id: str, *, in_place: bool) -> int:
    return sum(boundary.in_place is in_place for boundary in boundaries(engine, job_id))


def resize(platform: Platform, job_id: str, number: int) -> None:
    """Take one of the job's two slots for another holder, and give it back: two resizes of the job."""
    control, holder = platform.control, f"holder-{number}"
    control.submit(holder, spec("holder", slots={"min": 1, "max": 1}), JobFacts(dataset_samples=1000))
    segment = f"{holder}__seg_0"
    control.acquire(segment)
    eventually(lambda: control.segment(segment).lease_live, 120, "the holder gets its slot")
    _trains(platform, job_id, slots=1)
    origin = control.segment(segment).epoch
    control.cancel(holder, "it has held its slot for long enough")
    assert origin is not None
    control.process_group_gone(origin, ExitReport(kind="stopped"))  # it never had processes
    _trains(platform, job_id, slots=2)


def _trains(platform: Platform, job_id: str, slots: int) -> None:
    """Wait until the job takes steps on so many slots."""

    def trains() -> bool:
        job = platform.control.job(job_id)
        held = job.allocation.num_slots if job.allocation else 0
        return job.segment_state is SegmentState.RUNNING and held == slots

    eventually(trains, 120, f"the job runs on {slots} slots")
    time.sleep(1.0)  # some steps


def measure(platform: Platform, wanted: int) -> list[Boundary]:
    engine = create_engine(read_secret(platform.settings, "ledger_url"))
    platform.control.set_cluster(ClusterSpec.model_validate({"nodes": [{"name": "node", "type": "cpu", "slots": 2}]}))
    run_id = platform.trigger("elastic_job", conf={WHOLE_SPEC: spec("boundary").model_dump(mode="json")})
    jobs = eventually(lambda: platform.control.jobs(active_only=True), 120, f"run {run_id} submits its job")
    job_id = jobs[0].job_id
    _trains(platform, job_id, slots=2)
    for number in range((wanted + 1) // 2):
        resize(platform, job_id, number)
    eventually(lambda: count(engine, job_id, in_place=False) >= wanted, 60, f"{wanted} resizes that committed again")
    eventually(lambda: count(engine, job_id, in_place=True) >= wanted, 300, f"{wanted} boundaries in place")
    assert platform.control.job(job_id).state is JobState.ACTIVE
    found = boundaries(engine, job_id)
    platform.control.cancel(job_id, "measured")
    engine.dispose()
    return found


def report(found: Sequence[Boundary], wanted: int, *, quick: bool) -> int:
    result = Report("boundary", quick=quick)
    kept = [boundary for boundary in found if boundary.in_place]
    moved = [boundary for boundary in found if not boundary.in_place]
    result.figure("in_place_seconds", [boundary.whole for boundary in kept])
    result.figure(
        "resize_seconds", [{"slots": b.slots, "phases": dict(zip(PHASES, b.phases, strict=True))} for b in moved]
    )
    rows = [
        ("in place: whole", *_cells([b.whole for b in kept])),
        ("in place: save and commit", *_cells([b.phases[0] for b in kept])),
    ]
    rows.append(("resize: whole", *_cells([b.whole for b in moved])))
    rows += [(f"resize: {name}", *_cells([b.phases[i] for b in moved])) for i, name in enumerate(PHASES)]
    result.table(
        "Seconds from the last step of a segment to the first of the next", ("", "n", "median", "q1", "q3", "max"), rows
    )
    medians = {name: statistics.median(b.phases[i] for b in moved) for i, name in enumerate(PHASES)}
    dominant = max(medians, key=lambda name: medians[name])
    whole = statistics.median(b.whole for b in moved)
    print(f"A resize is dominated by: {dominant} ({medians[dominant]:.2f} s of {whole:.2f} s)")
    ratio = whole / statistics.median(b.whole for b in kept)
    result.figure("resize_over_in_place", ratio)
    result.bar(
        "boundaries measured of each kind",
        want=f">= {wanted}",
        got=min(len(kept), len(moved)),
        ok=min(len(kept), len(moved)) >= wanted,
    )
    result.bar(
        "a boundary in place is cheaper than one with new processes",
        want=">= 10 x",
        got=round(ratio, 1),
        ok=ratio >= 10,
    )
    return result.finish()


def _cells(raw: Sequence[float]) -> tuple[Any, ...]:
    found = spread(raw)
    return int(found["n"]), found["median"], found["q1"], found["q3"], found["max"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 boundaries of each kind instead of 10")
    quick = parser.parse_args().quick
    wanted = 2 if quick else 10
    home = Path(tempfile.mkdtemp(prefix="elastic-boundary-"))
    platform = Platform(home, policy="fair_share")
    try:
        platform.up()
        found = measure(platform, wanted)
    finally:
        platform.elastic("down", check=False)
        shutil.rmtree(home, ignore_errors=True)
    return report(found, wanted, quick=quick)


if __name__ == "__main__":
    sys.exit(main())
