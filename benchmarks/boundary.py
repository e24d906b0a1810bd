"""What a boundary costs: from the last step of a segment to the first step of the next, and where it goes.

    .venv/bin/python -m benchmarks.boundary [--quick]

The whole platform runs (PostgreSQL, Airflow, MLflow, on this machine, in a folder of its own) under its default policy,
with one job of `examples.paced` at a time, which is worth its slots on any machine: the model of the demo's smallest
job is so fast that the policy soon finds one slot to be enough. Kinds of boundary:

- in place: the slots stay; the lease passes on inside the commit, which is made behind the steps, and training goes
  straight on;
- asked: the same, but a user asks for it (as by clearing a task in Airflow); training waits for the commit;
- shrink and grow: another holder of higher priority asks for one of the two slots, later gives it back. The lease
  passes on with other slots, and the processes that stay begin anew from the checkpoint; for a growth, further workers
  were started ahead while training went on;
- another layout: a shrink or a growth of a transformer that is tensor-parallel over all of its slots, 3 or 2: each of
  its ranks needs another part of the tensors than it had;
- rank 0's slot: a shrink that takes it. Of a job on 3 slots of nodes of 1 and 2: it keeps the node of 2 when one slot
  goes, and that of 1 when two go, so that every shrink takes rank 0's;
- restart, their rival on the same work in the same run: what a platform does that ends the processes at every
  boundary. Here their agent is told to stop, as by an operator; they save and leave. Airflow's next run is granted the
  slots and starts new processes.

Phases of a restart: `save and commit` (last step to commit), `processes end` (to slots freed), `Airflow and grant`
(to the next lease), `launch` (Airflow's task, agent, to the workers' first heartbeat), `import and restore` (to the
first step). A resize has two: `save and commit`, and `begin anew`, which ends with the first step.

In place two figures are taken, which overlap. The stall is what training waits: from the end of the segment's last step
to the start of the next one, and between the steps after it for as long as the commit has no answer. That the task
evaluates its model on held-out data meanwhile is in it; that steps take longer while a thread writes is not. `commit`
is when the boundary was committed, counted from its last step.

Bars: a resize of every kind takes at most 2 s (median), a boundary in place stalls training for at most a step and 50
ms, and is at least 10 times cheaper than one with new processes.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, text

from benchmarks.common.report import Report, spread
from elastic_core.domain import JobState, SegmentState
from elastic_core.host.messages import AgentProcess
from elastic_core.host.rundir import RunDir
from elastic_core.services.secrets import read_secret
from elastic_core.spec import ClusterSpec, JobSpec
from elastic_core.spec.form import WHOLE_SPEC
from examples.paced import entry_point
from tests.e2e.platform import Platform, eventually

PHASES = ("save and commit", "processes end", "Airflow and grant", "launch", "import and restore")
BOUNDARIES = text(
    """
    SELECT a.id AS before, b.id AS after, b.handed_over, a.revoked_by, x.allocation AS old, y.allocation AS new,
           (c.timings->>'last_step_at')::float8 AS last_step_at, c.committed_at, x.released_at,
           y.granted_at, y.started_at, (d.timings->>'first_step_at')::float8 AS first_step_at,
           (d.timings->>'conclude')::float8 AS conclude, (c.timings->>'evaluate')::float8 AS evaluate
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


STALL_SECONDS = 0.05
IN_PLACE, ASKED, RESTART = "in place", "asked", "restart"
SHRINK, GROW, RANK_0, LAYOUT = "shrink", "grow", "rank 0's slot", "another layout"
RESIZES = (SHRINK, GROW, RANK_0, LAYOUT)


@dataclass(frozen=True, slots=True)
class Boundary:
    """Seconds. `phases` follow `PHASES` after a restart; else they are the commit, and what came after it, which in
    place may have come before it."""

    kind: str
    slots: str
    whole: float
    phases: tuple[float, ...]
    behind: bool  # the commit was made behind the steps
    evaluate: float  # of `whole`: the task's own look at held-out data

    @staticmethod
    def of(row: Any) -> Boundary:
        kind, instants = _kind(row), [row.last_step_at, row.committed_at]
        if not row.handed_over:
            kind, instants = RESTART, [*instants, row.released_at, row.granted_at, row.started_at]
        ends = (*instants, row.first_step_at)
        phases = tuple(after - before for before, after in pairwise(ends))
        whole = sum(phases) + (row.conclude or 0.0)
        slots, behind = f"{len(row.old['slots'])} -> {len(row.new['slots'])}", row.conclude is not None
        return Boundary(kind, slots, whole, phases, behind, row.evaluate or 0.0)


def _kind(row: Any) -> str:
    """Of a boundary whose processes live on."""
    old, new = row.old["slots"], row.new["slots"]
    if any(row.old["layout"][axis] != row.new["layout"][axis] for axis in ("tensor", "pipeline")):
        return LAYOUT
    if len(old) != len(new):
        shrink = SHRINK if old[0] in new else RANK_0
        return GROW if len(new) > len(old) else shrink
    return ASKED if row.revoked_by == "user" else IN_PLACE


def spec(name: str, **changes: Any) -> JobSpec:
    base = {
        "name": name,
        "entry_point": "examples.digits:Digits",
        "params": {"width": 128},
        "work": {"epochs": 100_000},
        "batch": {"min": 64, "max": 64},
        "slots": {"min": 1, "max": 2},
        "segment": {"seconds": 3.0},
    }
    return JobSpec.model_validate(base | changes)


def paced(name: str, kind: str, most_slots: int, compute: float = 1.0) -> JobSpec:
    """A job that is worth its slots on any machine: a model of the size of the demo's, in steps of a stated length."""
    changes = {"entry_point": entry_point(kind), "params": {"width": 128, "compute": compute}}
    return spec(name, **changes, slots={"min": 1, "max": most_slots}, batch={"min": 48, "max": 48})


def tensor_parallel(name: str) -> JobSpec:
    """A job whose layers are cut over all of its slots, which share the time of a step: long enough that what three
    ranks take of two cores does not eat what the third one brings."""
    params = {"width": 36, "heads": 6, "depth": 2, "context": 16, "train_bytes": 20_000, "milliseconds": 30}
    changes = {"entry_point": "tests.e2e.tasks_for_tests:SharedBytes", "params": params, "layouts": {"tensor": [2, 3]}}
    return spec(name, **changes, slots={"allowed": [2, 3]}, batch={"min": 48, "max": 48})


def boundaries(engine: Engine, job_id: str) -> list[Boundary]:
    with engine.connect() as connection:
        return [Boundary.of(row) for row in connection.execute(BOUNDARIES, {"job": job_id})]


def step_seconds(engine: Engine, job_id: str) -> float:
    """Median on both slots."""
    query = text("SELECT step_seconds FROM observations WHERE job_id = :job AND num_slots = 2")
    with engine.connect() as connection:
        return statistics.median(connection.scalars(query, {"job": job_id}))


def count(engine: Engine, job_id: str, kind: str) -> int:
    return sum(boundary.kind == kind for boundary in boundaries(engine, job_id))


def ask(platform: Platform, engine: Engine, job_id: str) -> None:
    """Be a user who asks for a boundary."""
    before = count(engine, job_id, ASKED)
    platform.control.revoke(platform.control.job(job_id).segment_id, "to be measured")
    eventually(lambda: count(engine, job_id, ASKED) > before, 120, "the next segment has committed")


def restart(platform: Platform, engine: Engine, job_id: str) -> None:
    """Have the job's processes replaced."""
    before = count(engine, job_id, RESTART)
    origin = platform.control.launch_order(platform.control.job(job_id).segment_id).origin_epoch
    agent = RunDir.of(platform.home, origin).require(AgentProcess)
    agent.process.send(signal.SIGTERM)
    eventually(lambda: count(engine, job_id, RESTART) > before, 120, "new processes have committed")


def resize(platform: Platform, job_id: str, number: int, whole: int, taken: int) -> None:
    """Take some of the job's slots for another holder, and give them back: two resizes of the job."""
    holder = f"holder-{job_id}-{number}"
    slots = {"min": taken, "max": taken}
    platform.hold_slots(holder, spec(f"holder-of-{taken}", slots=slots, priority=10))
    _trains(platform, job_id, slots=whole - taken)
    platform.give_back_slots(holder)
    _trains(platform, job_id, slots=whole)


def _trains(platform: Platform, job_id: str, slots: int) -> None:
    """Wait until the job takes steps on so many slots."""

    def trains() -> bool:
        job = platform.control.job(job_id)
        held = job.allocation.num_slots if job.allocation else 0
        return job.segment_state is SegmentState.RUNNING and held == slots

    eventually(trains, 180, f"the job runs on {slots} slots")
    time.sleep(1.0)  # some steps


def _start(platform: Platform, wanted: JobSpec, nodes: Mapping[str, int]) -> str:
    """A job on these nodes, alone; its id, once it trains on all their slots."""
    cluster = [{"name": name, "type": "cpu", "slots": slots} for name, slots in nodes.items()]
    platform.control.set_cluster(ClusterSpec.model_validate({"nodes": cluster}))
    run_id = platform.trigger("elastic_job", conf={WHOLE_SPEC: wanted.model_dump(mode="json")})
    jobs = eventually(lambda: platform.control.jobs(active_only=True), 120, f"run {run_id} submits its job")
    _trains(platform, jobs[0].job_id, slots=sum(nodes.values()))
    return str(jobs[0].job_id)


def _end(platform: Platform, job_id: str) -> None:
    assert platform.control.job(job_id).state is JobState.ACTIVE
    platform.control.cancel(job_id, "measured")
    eventually(lambda: not platform.control.snapshot().jobs, 60, "its slots are free")


def measure(platform: Platform, wanted: int) -> tuple[list[Boundary], float]:
    """The boundaries, and a step's seconds."""
    engine = create_engine(read_secret(platform.settings, "ledger_url"))
    job_id = _start(platform, paced("boundary", "compute-bound", most_slots=2), {"node": 2})
    for number in range(wanted):  # a growth whose workers come too late is a restart
        if min(count(engine, job_id, kind) for kind in (SHRINK, GROW)) < wanted:
            resize(platform, job_id, number, whole=2, taken=1)
    for _ in range(wanted):
        ask(platform, engine, job_id)
    for _ in range(wanted):
        restart(platform, engine, job_id)
    eventually(lambda: count(engine, job_id, SHRINK) >= wanted, 60, f"{wanted} resizes that committed again")
    eventually(lambda: count(engine, job_id, IN_PLACE) >= wanted, 300, f"{wanted} boundaries in place")
    measured, step = boundaries(engine, job_id), step_seconds(engine, job_id)
    _end(platform, job_id)

    job_id = _start(platform, paced("rank-0", "noise-limited", most_slots=3, compute=4.0), {"a": 1, "b": 2})
    first = platform.control.job(job_id).allocation
    assert first is not None
    on_the_single = first.slots[0].node == "a"
    for number in range(wanted):
        resize(platform, job_id, number, whole=3, taken=1 if (number % 2 == 0) == on_the_single else 2)
    eventually(lambda: count(engine, job_id, RANK_0) >= wanted, 60, f"{wanted} shrinks that committed again")
    measured += [boundary for boundary in boundaries(engine, job_id) if boundary.kind == RANK_0]
    _end(platform, job_id)

    job_id = _start(platform, tensor_parallel("layouts"), {"node": 3})
    for number in range(wanted):
        if count(engine, job_id, LAYOUT) < wanted:
            resize(platform, job_id, number, whole=3, taken=1)
    eventually(lambda: count(engine, job_id, LAYOUT) >= wanted, 60, f"{wanted} changes of layout that committed again")
    measured += [boundary for boundary in boundaries(engine, job_id) if boundary.kind == LAYOUT]
    _end(platform, job_id)
    engine.dispose()
    return measured, step


def report(result: Report, measured: Sequence[Boundary], step: float, wanted: int) -> int:
    kinds = (IN_PLACE, ASKED, *RESIZES, RESTART)
    by_kind = {kind: [b for b in measured if b.kind == kind] for kind in kinds}
    in_place = [
        {"stall": b.whole, "evaluate": b.evaluate, "commit": b.phases[0], "behind": b.behind} for b in by_kind[IN_PLACE]
    ]
    result.figure("in_place_seconds", in_place)
    result.figure("step_seconds", step)
    for kind in (ASKED, *RESIZES):
        whole = [{"slots": b.slots, "whole": b.whole, "commit": b.phases[0]} for b in by_kind[kind]]
        result.figure(f"{kind.replace(' ', '_')}_seconds", whole)
    result.figure("restart_seconds", [dict(zip(PHASES, b.phases, strict=True)) for b in by_kind[RESTART]])
    rows = [
        (f"{kind}: {name}", *_cells([part(boundary) for boundary in by_kind[kind]])) for kind, name, part in _lines()
    ]
    result.table(
        "Seconds from the last step of a segment to the first of the next", ("", "n", "median", "q1", "q3", "max"), rows
    )
    print(f"Of those in place, {sum(b.behind for b in by_kind[IN_PLACE])} were committed behind the steps.")
    medians = {kind: statistics.median(b.whole for b in some) for kind, some in by_kind.items()}
    least = min(len(some) for some in by_kind.values())
    result.bar("boundaries measured of each kind", want=f">= {wanted}", got=least, ok=least >= wanted)
    for kind in (ASKED, *RESIZES):
        result.bar(f"{kind}, median", want="<= 2 s", got=round(medians[kind], 2), ok=medians[kind] <= 2.0)
    most = step + STALL_SECONDS
    result.bar(
        "the stall without a resize, median",
        want=f"<= a step + 50 ms = {most:.3f} s",
        got=round(medians[IN_PLACE], 3),
        ok=medians[IN_PLACE] <= most,
    )
    ratio = medians[RESTART] / medians[IN_PLACE]
    result.figure("restart_over_in_place", ratio)
    result.bar(
        "a boundary in place is cheaper than one with new processes",
        want=">= 10 x",
        got=round(ratio, 1),
        ok=ratio >= 10,
    )
    return result.finish()


def _lines() -> list[tuple[str, str, Callable[[Boundary], float]]]:
    """Kind, name and value of each line of the table."""
    whole, phase = attrgetter("whole"), [partial(_phase, i) for i in range(len(PHASES))]
    return [
        (IN_PLACE, "stall", whole),
        (IN_PLACE, "of it evaluating", attrgetter("evaluate")),
        (IN_PLACE, "commit", phase[0]),
        (ASKED, "whole", whole),
        *(
            line
            for kind in RESIZES
            for line in ((kind, "whole", whole), (kind, "save and commit", phase[0]), (kind, "begin anew", phase[1]))
        ),
        (RESTART, "whole", whole),
        *((RESTART, name, phase[i]) for i, name in enumerate(PHASES)),
    ]


def _phase(index: int, boundary: Boundary) -> float:
    return boundary.phases[index]


def _cells(raw: Sequence[float]) -> tuple[Any, ...]:
    quartiles = spread(raw)
    return int(quartiles["n"]), quartiles["median"], quartiles["q1"], quartiles["q3"], quartiles["max"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 boundaries of each kind instead of 10")
    quick = parser.parse_args().quick
    wanted = 2 if quick else 10
    result = Report("boundary", quick=quick)  # before what it times
    home = Path(tempfile.mkdtemp(prefix="elastic-boundary-"))
    platform = Platform(home)
    try:
        platform.up()
        measured, step = measure(platform, wanted)
    finally:
        platform.elastic("down", check=False)
        shutil.rmtree(home, ignore_errors=True)
    return report(result, measured, step, wanted)


if __name__ == "__main__":
    sys.exit(main())
