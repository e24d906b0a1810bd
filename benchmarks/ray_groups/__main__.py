"""`python -m benchmarks.ray_groups [--quick]`: submit to processes, warm, over a real Ray cluster of two nodes here.

Both nodes are raylets of this machine. Workers print a line and sleep: what is timed is the way there, through Ray's
Jobs API, a coordinator, two actors and two agents. The first group, which starts the actors, is not counted. Needs
`make ray`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common.report import Report
from elastic_core.domain import Allocation, Layout, Slot, segment_id_of
from elastic_core.host.messages import WorkerProcesses
from elastic_core.host.rundir import RunDir
from elastic_core.launch.on_ray.ray_launcher import RayLauncher
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.protocol.records import JobFacts, RestorePoint
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec
from tests.launch.ray_nodes import RayCluster

NODES = ("n0", "n1")
WORKER = (sys.executable, "-S", "-c", "import time; print('here', flush=True); time.sleep(3600)")
MOST_MEDIAN_SECONDS = 4.0
PATIENCE_SECONDS = 180.0


def order(epoch: int) -> LaunchOrder:
    """One slot on each node."""
    spec = {"name": "timed", "entry_point": "examples.digits:Digits", "work": {"epochs": 1},
            "batch": {"min": 8, "max": 8}}  # fmt: skip
    slots = tuple(Slot(node, 0, "cpu") for node in NODES)
    return LaunchOrder(
        segment_id=segment_id_of(f"timed-{epoch}", 0), job_id=f"timed-{epoch}", index=0, lineage=0, epoch=epoch,
        origin_epoch=epoch, attempt=0, spec=JobSpec.model_validate(spec), facts=JobFacts(dataset_samples=100),
        allocation=Allocation(slots=slots, global_batch=8, layout=Layout(data=2)), total_samples=100,
        restore=RestorePoint(candidates=()), warm_start=None, segment_seconds=None, segment_steps=None, token="a",
        agent_token="b", lease_seconds=90.0, heartbeat_seconds=2.0,
    )  # fmt: skip


def wait(condition: object, what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():  # type: ignore[operator]
        if time.monotonic() > until:
            raise TimeoutError(f"not within {PATIENCE_SECONDS:g} s: {what}")
        time.sleep(0.02)


def timed(launcher: RayLauncher, settings: Settings, epoch: int) -> tuple[float, float]:
    """Seconds from submission to processes on both nodes, and from stop to the end that is known."""
    boxes = [RunDir.of(settings.node_home() / node, epoch) for node in NODES]
    began = time.monotonic()
    launcher.start(order(epoch))
    wait(lambda: all((known := box.read(WorkerProcesses)) and known.workers for box in boxes), "workers on both nodes")
    started = time.monotonic() - began
    began = time.monotonic()
    launcher.stop(epoch, 1.0)
    wait(lambda: not launcher.poll(epoch).alive, "the group has ended")  # type: ignore[union-attr]
    return started, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_groups", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five groups instead of twenty")
    quick = parser.parse_args().quick
    report = Report("ray_groups", quick=quick)
    home = Path(tempfile.mkdtemp(prefix="ray-groups-"))
    cluster = RayCluster(slots=2)
    try:
        cluster.add("n1", 2)
        settings = cluster.settings(home, control_url="http://127.0.0.1:9", node_memory_mb=0)
        launcher = RayLauncher(settings, worker_command=WORKER)
        cold, _ = timed(launcher, settings, 1)
        both = [timed(launcher, settings, epoch) for epoch in range(2, 7 if quick else 22)]
    finally:
        cluster.close()
    starts, ends = [start for start, _ in both], [end for _, end in both]
    measured = (("cold", [cold]), ("submit to processes", starts), ("stop to its end known", ends))
    rows = [(name, len(raw), f"{statistics.median(raw):.2f}", f"{max(raw):.2f}") for name, raw in measured]
    report.table("Groups of two nodes, seconds", ("what", "count", "median", "most"), rows)
    report.figure("cold_seconds", cold)
    report.figure("start_seconds", starts)
    report.figure("stop_seconds", ends)
    median = statistics.median(starts)
    report.bar("submit to processes, median", want=f"< {MOST_MEDIAN_SECONDS:g} s", got=round(median, 2),
               ok=median < MOST_MEDIAN_SECONDS)  # fmt: skip
    sys.exit(report.finish())


if __name__ == "__main__":
    main()
