"""A transformer of 1 GiB of state on 4 ranks changes its layout while it lives: seconds from the last step in the old
layout to the first in the new one, beside a restart from the store and beside DCP, in one run.

    .venv/bin/python -m benchmarks.large_resize [--quick]

Real worker processes train the example transformer (weights and Adam's moments in float32) under the small ledger of
the tests, which answers a commit within milliseconds; `benchmarks.boundary` has what a real one adds. TP 2 -> 4 is two
replicas of two tensor-parallel ranks that become four tensor-parallel ranks; PP 1 -> 2 is the same two replicas that
become two stages. Ways:

- in place: what a job does. A checkpoint is written and committed, the same processes form a new group, and take what
  they lack from each other's memory;
- restart: a checkpoint, then new processes (forked from one that has loaded torch), which read it from the store. It is
  still in the page cache, as it would be on one machine;
- DCP: processes that live on save by torch.distributed.checkpoint what they hold, and load what the new layout gives
  them. Tensors alone: no model is built, no group formed and no step taken within its clock.

All write the whole state once (with fsync). Processor time is that of all workers, which neighbours on the machine
disturb least. Memory is the most that all workers held at once between the two steps,
without mapped files; DCP's have neither model nor gradients. Ways take turns; medians.

Bars: in place is quicker than the others, and no tensor is read from the store.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.common.report import Report
from benchmarks.large_resize.dcp_change import change_by_dcp
from benchmarks.large_resize.process_watch import ProcessWatch
from elastic_core.domain import Layout, Slot, to_json
from elastic_core.host.environment import ALLOCATION
from elastic_core.protocol.trainer import Commit
from elastic_core.state.format.manifest import Manifest, read_manifest
from elastic_core.state.layout.layout import of_one_rank
from elastic_core.state.reshard.rank_places import rank_places
from elastic_core.state.stores.local_store import LocalStore
from tests.train import forked
from tests.train.job import Job

BEFORE = Layout(data=2, tensor=2)
CHANGES = {"TP 2 -> 4": Layout(tensor=4), "PP 1 -> 2": Layout(tensor=2, pipeline=2)}
SLOTS = tuple(Slot("n", index, "cpu") for index in range(BEFORE.world_size))
BATCH, STEPS, CONTEXT, TRAIN_BYTES = 4, 2, 8, 10_000
LARGE = {"width": 1024, "heads": 16, "depth": 7}
SMALL = {"width": 512, "heads": 8, "depth": 3}
IN_PLACE, RESTART, DCP = "in place", "restart", "DCP"


@dataclass(frozen=True, slots=True)
class Change:
    """`seconds` between the two steps; `parts` of them by name, as far as they are told."""

    way: str
    seconds: float
    cpu_seconds: float  # of all workers
    peak_bytes: int
    state_bytes: int
    store_bytes: float
    parts: Mapping[str, float]


def a_job(folder: Path, sizes: Mapping[str, int]) -> Job:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    params = {**sizes, "context": CONTEXT, "train_bytes": TRAIN_BYTES, "learning_rate": 1e-3}
    rows = (TRAIN_BYTES - 1) // CONTEXT
    return Job(folder, entry="UnmeasuredBytes", rows=rows, total=2 * STEPS * BATCH, params=params)


def in_place(job: Job, after: Layout, watch: ProcessWatch) -> None:
    places = rank_places(BEFORE, SLOTS, after, SLOTS)  # as the ledger would have them
    assert places is not None
    job.ledger.set(next_slots=[[slot.index for slot in places]], next_layouts=[to_json(after)])
    _join(job, _start(job, BEFORE, watch))


def restart(job: Job, after: Layout, watch: ProcessWatch) -> None:
    for layout in (BEFORE, after):
        _join(job, _start(job, layout, watch))


def _start(job: Job, layout: Layout, watch: ProcessWatch) -> list[BaseProcess]:
    workers = job.start(layout.world_size, BATCH, layout=layout, segment_steps=STEPS, heartbeat_seconds=1.0)
    watch.pids = tuple(worker.pid for worker in workers if worker.pid is not None)
    return workers


def _join(job: Job, workers: list[BaseProcess]) -> None:
    codes = forked.join(workers, seconds=600)
    if any(codes):
        raise RuntimeError(f"workers ended with the exit codes {codes}:\n{job.logs()}")


WAYS: Mapping[str, Callable[[Job, Layout, ProcessWatch], None]] = {IN_PLACE: in_place, RESTART: restart}


def changed(way: str, job: Job, after: Layout) -> tuple[Change, list[Manifest]]:
    """A change by the platform, and the checkpoints before and after it."""
    watch = ProcessWatch()
    with watch.looking():
        WAYS[way](job, after, watch)
    first, last = job.ledger.commits()
    manifests = [read_manifest(LocalStore(job.store), commit.uri) for commit in (first, last)]
    since, until = first.timings["last_step_at"], last.timings["first_step_at"]
    return (
        Change(
            way=way,
            seconds=until - since,
            cpu_seconds=watch.cpu_seconds(since, until),
            peak_bytes=watch.most_bytes(since, until),
            state_bytes=first.size_bytes,
            store_bytes=last.timings["restored_from_store_bytes"],
            parts=_parts(first, last),
        ),
        manifests,
    )


def _parts(first: Commit, last: Commit) -> dict[str, float]:
    names = ("restore_keep", "restore_agree", "restore_fetch", "restore_load")
    return {"save": first.timings["save"], **{name: last.timings[name] for name in names if name in last.timings}}


def by_dcp(manifests: Sequence[Manifest], folder: Path) -> Change:
    """The change between the layouts that two checkpoints were written under."""
    old, new = (manifest.layout for manifest in manifests)
    assert old is not None
    assert new is not None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    metas = {name: meta for name, meta in manifests[0].metas.items() if not of_one_rank(name)}
    took = change_by_dcp(metas, old, new, folder)
    return Change(
        way=DCP,
        seconds=took.save + took.load,
        cpu_seconds=took.cpu,
        peak_bytes=took.peak_bytes,
        state_bytes=manifests[0].size_bytes,
        store_bytes=float(manifests[0].size_bytes),
        parts={"save": took.save, "load": took.load},
    )


def measure(folder: Path, sizes: Mapping[str, int], after: Layout, rounds: int) -> list[Change]:
    changes = []
    for _ in range(rounds):
        for way in WAYS:
            change, manifests = changed(way, a_job(folder / "job", sizes), after)
            changes.append(change)
        changes.append(by_dcp(manifests, folder / "by-dcp"))
    return changes


def _median(changes: Sequence[Change], way: str, of: Callable[[Change], float]) -> float:
    return statistics.median(of(change) for change in changes if change.way == way)


def _row(name: str, changes: Sequence[Change], way: str) -> tuple[Any, ...]:
    parts = {part: _median(changes, way, lambda c, part=part: c.parts.get(part, 0.0))  # type: ignore[misc]
             for change in changes if change.way == way for part in change.parts}  # fmt: skip
    told = ", ".join(f"{part.removeprefix('restore_')} {seconds:.2f}" for part, seconds in parts.items())
    seconds = _median(changes, way, lambda change: change.seconds)
    cpu = _median(changes, way, lambda change: change.cpu_seconds)
    gib = _median(changes, way, lambda change: change.peak_bytes / 2**30)
    mib = _median(changes, way, lambda change: change.store_bytes / 2**20)
    return f"{name}: {way}", seconds, cpu, gib, mib, told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="113 MiB of state, once each")
    parser.add_argument("--rounds", type=int, default=None, help="how often each change is made")
    parser.add_argument("--folder", default=None, help="where to write; a temporary folder by default")
    arguments = parser.parse_args()
    sizes, rounds = (SMALL, 1) if arguments.quick else (LARGE, 3)
    report = Report("large_resize", quick=arguments.quick)
    os.environ.update(ALLOCATION)  # for the processes of DCP as for ours
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        by_case = {name: measure(folder, sizes, after, arguments.rounds or rounds) for name, after in CHANGES.items()}
    report.figure("changes", {name: [asdict(change) for change in changes] for name, changes in by_case.items()})
    rows = [_row(name, changes, way) for name, changes in by_case.items() for way in (IN_PLACE, RESTART, DCP)]
    state = next(iter(by_case.values()))[0].state_bytes >> 20
    columns = ("", "seconds", "CPU s", "peak GiB", "from the store, MiB", "of the seconds")
    report.table(f"{state} MiB of state, {BEFORE} before: from the last old step to the first new one", columns, rows)
    for name, changes in by_case.items():
        ours = _median(changes, IN_PLACE, lambda change: change.seconds)
        for way in (RESTART, DCP):
            ratio = _median(changes, way, lambda change: change.seconds) / ours
            report.bar(f"{name}: {way} over in place", want="> 1", got=round(ratio, 2), ok=ratio > 1)
        read = max(change.store_bytes for change in changes if change.way == IN_PLACE)
        report.bar(f"{name}: bytes read from the store in place", want="0", got=int(read), ok=read == 0)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
