"""Jobs of the real services on a real Ray cluster: submitted in Airflow, trained, resized and finished there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.host import fork_client
from elastic_core.host.messages import WorkerProcesses
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.settings import Settings
from elastic_core.state.memory_tier import cache_servers
from tests.e2e.platform import Platform, eventually
from tests.e2e.test_main_line import LINE, finished, start, states_of, trains
from tests.e2e.test_resizes import hold, resized
from tests.launch.ray_nodes import RayCluster, skip_without_ray

pytestmark = pytest.mark.nightly
NODES = ("n0",)


@pytest.fixture(scope="module")
def on_ray() -> Iterator[Platform]:
    """The services, with a Ray cluster of one node for their training processes."""
    skip_without_ray()
    home = Path(tempfile.mkdtemp(prefix="elastic-ray-"))
    cluster = RayCluster(slots=3)
    platform = Platform(home, launcher="ray", ray_address=cluster.address, ray_token_file=cluster.token_file)
    (home / "cluster.json").unlink()  # nodes are what Ray has
    platform.settings = platform.settings.model_copy(update={"cluster": None})
    try:
        platform.up()
        yield platform
    finally:
        platform.elastic("down", check=False)
        for node in NODES:
            node_home = platform.settings.node_home() / node
            fork_client.stop(node_home)
            cache_servers.stop(Settings(home=node_home))
        cluster.close()
        left = platform.processes()
        shutil.rmtree(home, ignore_errors=bool(left))
    assert left == []


def workers(platform: Platform, origin_epoch: int) -> dict[str, ProcessId]:
    """Of a group, by slot."""
    folder = RunDir.of(platform.settings.node_home() / "n0", origin_epoch)
    return {worker.slot: worker.process for worker in folder.require(WorkerProcesses).workers}


def test_a_job_trains_on_ray_is_resized_in_its_processes_and_finishes(on_ray: Platform) -> None:
    spec = {
        "name": "on-ray", "entry_point": LINE, "params": {"samples": 400, "milliseconds": 5}, "audit": "full",
        "work": {"samples": 60_000}, "batch": {"min": 32, "max": 32}, "slots": {"min": 1, "max": 3},
        "segment": {"seconds": 3600}, "checkpoints": {"interval_seconds": None, "interval_steps": 5},
    }  # fmt: skip
    start(on_ray, spec)
    first = eventually(lambda: trains(on_ray, "on-ray"), 180, "it trains")
    resized(on_ray, "on-ray", 3)
    before = workers(on_ray, first.epoch)
    assert not (on_ray.home / "run").exists()  # nothing runs under the services themselves

    holder = hold(on_ray, "on-ray", 2)
    shrunk, _ = resized(on_ray, "on-ray", 1)
    assert (shrunk.handed_over, shrunk.attempt) == (True, 0)
    after = workers(on_ray, first.epoch)
    assert after.items() <= before.items()
    assert len(after) == 1

    on_ray.give_back_slots(holder)
    grown, _ = resized(on_ray, "on-ray", 3)
    assert (grown.handed_over, grown.attempt) == (True, 0)
    assert after.items() <= workers(on_ray, first.epoch).items()

    job = finished(on_ray, "on-ray", 600)
    assert job.samples_read == 60_000
    eventually(lambda: on_ray.run_state("elastic_job", "on-ray") == "success", 120, "the job's run succeeds")
    assert set(states_of(on_ray, "elastic_segment", first.segment_id).values()) == {"success"}
    log = on_ray.elastic("jobs", "logs", "on-ray", "--tail", "5")
    assert "attempt 1 of 1, rank 0 of 3" in log.stderr
