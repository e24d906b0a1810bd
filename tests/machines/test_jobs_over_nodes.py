"""Jobs of the real services over several Ray nodes: submitted in Airflow, grown over nodes, and going on after a loss;
under the default policy, which asks first whether a network is worth it.

The nodes are raylets of this machine with homes of their own; Ray's head is another one, without slots.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_core.host.messages import WorkerProcesses
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from tests.e2e.platform import PATIENCE, Platform, eventually
from tests.e2e.test_main_line import LINE, assert_read_exactly_once, finished, start, states_of, trains
from tests.e2e.test_resizes import hold, resized
from tests.launch.on_ray.test_ray_nodes import end_node
from tests.launch.ray_nodes import RayCluster, skip_without_ray

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3000)]
NODES = ("n0", "n1", "n2")
KNOWN_SECONDS, AGAIN_SECONDS = 5.0, 30.0  # bars for a node whose processes are all killed, on an idle machine


class OnNodes(Platform):
    """The services, with a Ray cluster for their training processes."""

    def __init__(self, home: Path) -> None:
        self.cluster = RayCluster(slots=0, node="head")
        super().__init__(home, launcher="ray", ray_address=self.cluster.address, ray_token_file=self.cluster.token_file)
        (home / "cluster.json").unlink()  # nodes are what Ray has
        self.settings = self.settings.model_copy(update={"cluster": None})

    def workers(self, origin_epoch: int) -> dict[str, ProcessId]:
        """Of a group, over all nodes, by slot."""
        boxes = [RunDir.of(self.settings.node_home() / node, origin_epoch) for node in NODES]
        known = [box.read(WorkerProcesses) for box in boxes if box.path.exists()]
        return {worker.slot: worker.process for workers in known if workers for worker in workers.workers}

    def pool(self) -> set[str]:
        return {node.name for node in self.control.nodes() if node.present}


@pytest.fixture(scope="module")
def there() -> Iterator[OnNodes]:
    skip_without_ray()
    home = Path(tempfile.mkdtemp(prefix="elastic-nodes-"))
    platform = OnNodes(home)
    try:
        platform.cluster.add("n0", 2)
        platform.up()
        yield platform
    finally:
        platform.elastic("down", check=False)
        for node in NODES:
            end_node(platform.settings.node_home() / node)
        platform.cluster.close()
        left = platform.processes()
        shutil.rmtree(home, ignore_errors=bool(left))
    assert left == []


def a_job(name: str, slots: tuple[int, int], samples: int, milliseconds: int = 5) -> dict[str, Any]:
    return {
        "name": name, "entry_point": LINE, "params": {"samples": 400, "milliseconds": milliseconds}, "audit": "full",
        "work": {"samples": samples}, "batch": {"min": 48, "max": 48}, "slots": {"min": slots[0], "max": slots[1]},
        "segment": {"seconds": 3600},
        "checkpoints": {"interval_seconds": None, "interval_steps": 10, "keep_last": 100},
    }  # fmt: skip


def mean_losses(platform: OnNodes, job_id: str) -> dict[tuple[int, int], float]:
    """From each checkpoint to the next, by their steps."""
    saved = sorted(platform.control.checkpoints(job_id), key=lambda record: record.checkpoint_id)
    begin = [0, *(record.step for record in saved)]
    return {(before, record.step): record.metrics["loss"] for before, record in zip(begin, saved, strict=False)
            if record.step > before}  # fmt: skip


def test_a_job_grows_from_one_node_to_three_and_shrinks_and_its_surviving_workers_keep_their_processes(
    there: OnNodes,
) -> None:
    """Its losses are those of a job that nothing disturbs: in every bit while it has as many workers, then up to the
    order of sums."""
    start(there, a_job("wide", (2, 6), 30_000, milliseconds=25))  # long enough for two nodes to come
    first, _ = resized(there, "wide", 2)
    assert first.epoch is not None
    alone = there.workers(first.epoch)
    assert set(alone) == {"n0:0", "n0:1"}
    there.cluster.add("n1", 2)
    there.cluster.add("n2", 2)
    grown, _ = resized(there, "wide", 6)
    assert (grown.handed_over, grown.attempt) == (True, 0)
    wide = there.workers(first.epoch)
    assert {slot.partition(":")[0] for slot in wide} == set(NODES)
    assert alone.items() <= wide.items()

    holder = hold(there, "wide", 4)
    shrunk, _ = resized(there, "wide", 2)
    assert (shrunk.handed_over, shrunk.attempt) == (True, 0)
    eventually(
        lambda: len(left := there.workers(first.epoch)) == 2 and left.items() <= wide.items(), 60, "four workers leave"
    )
    there.give_back_slots(holder)
    job = finished(there, "wide", 900 * PATIENCE)
    assert job.samples_read == 30_000
    assert_read_exactly_once(there, "wide")
    eventually(lambda: there.run_state("elastic_job", "wide") == "success", 180, "the job's run succeeds")
    assert set(states_of(there, "elastic_segment", first.segment_id).values()) == {"success"}

    start(there, a_job("calm-wide", (2, 2), 30_000, milliseconds=1))
    finished(there, "calm-wide", 600)
    losses, undisturbed = mean_losses(there, "wide"), mean_losses(there, "calm-wide")
    chain = [segment for segment in there.control.segments("wide") if segment.allocation is not None]
    on_two = next(segment.start_step for segment in chain if segment.allocation.num_slots > 2)  # node by node, maybe
    alike = [steps for steps in losses.keys() & undisturbed.keys() if steps[1] <= on_two]
    assert alike
    assert [losses[steps] for steps in alike] == [undisturbed[steps] for steps in alike]
    later = sorted(losses.keys() & undisturbed.keys())
    assert [losses[steps] for steps in later] == pytest.approx([undisturbed[steps] for steps in later], rel=1e-3)
    print(f"{len(alike)} stretches of {len(undisturbed)} compared bit for bit, {len(later)} up to the order of sums")
    ends = [evaluation(there, job_id) for job_id in ("wide", "calm-wide")]
    assert ends[0] == pytest.approx(ends[1], rel=1e-3)


def evaluation(platform: OnNodes, job_id: str) -> dict[str, float]:
    """Of its last checkpoint, once that is there."""
    found: dict[str, float] = eventually(
        lambda: platform.control.job(job_id).results.get("evaluation"), 120, f"{job_id} is evaluated"
    )
    return found


def test_a_job_whose_node_is_lost_goes_on_from_another_nodes_memory_and_ends_with_the_same_weights(
    there: OnNodes,
) -> None:
    for node in sorted(set(NODES) - there.pool()):
        there.cluster.add(node, 2)
    eventually(lambda: there.pool() == set(NODES), 120, "three nodes are in the pool")
    start(there, a_job("calm", (2, 2), 9_600))
    calm = finished(there, "calm", 600)

    start(there, a_job("shot", (2, 2), 9_600))
    segment: Any = eventually(lambda: trains(there, "shot", 2), 180, "it trains")
    eventually(lambda: len(there.control.checkpoints("shot")) > 2, 120, "it has checkpoints")
    (lost,) = {slot.node for slot in segment.allocation.slots}
    killed_at = time.monotonic()
    there.cluster.kill(lost)
    end_node(there.settings.node_home() / lost)
    eventually(lambda: lost not in there.pool(), 60, "the node leaves the pool")
    known = time.monotonic() - killed_at
    before = there.control.job("shot").step
    eventually(lambda: (job := there.control.job("shot")).step > before and job.last_restore, 180, "it trains again")
    again = time.monotonic() - killed_at
    restored = there.control.job("shot").last_restore
    shot = finished(there, "shot", 600)
    print(
        f"known after {known:.1f} s (bar {KNOWN_SECONDS:g}), trains again after {again:.1f} s (bar {AGAIN_SECONDS:g})"
    )
    assert known <= KNOWN_SECONDS * PATIENCE
    assert again <= AGAIN_SECONDS * PATIENCE
    assert restored["restored_from_store_bytes"] == 0
    assert there.control.segments("shot")[0].attempt == 1
    assert_read_exactly_once(there, "shot")
    results = [evaluation(there, job.job_id) for job in (calm, shot)]
    assert results[0] == results[1]  # bit for bit: as many workers, and no sample lost or read twice
