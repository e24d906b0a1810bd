"""The Slurm script makes an allocation the platform's pool, and empties it before it ends: a real Slurm, a real Ray."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core.domain import Allocation, Layout, Slot
from elastic_core.host.messages import WorkerProcesses
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.launch.on_ray.pool.pool_reports import PoolReports, RayPool
from elastic_core.launch.on_ray.ray_launcher import RayLauncher
from elastic_core.settings import Settings
from tests.e2e.platform import PATIENCE, ROOT, free_ports
from tests.launch.builders import SCRIPT, order, wait_for
from tests.launch.on_ray.test_ray_nodes import end_node
from tests.launch.ray_nodes import skip_without_ray
from tests.machines.slurm_cluster import SlurmCluster, skip_without_slurm

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]
SECONDS = 120.0 * PATIENCE
SCRIPT_OF_SLURM = ROOT / "deploy" / "slurm" / "ray-cluster.sbatch"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmCluster]:
    skip_without_ray()
    skip_without_slurm()
    slurm = SlurmCluster(3)
    yield slurm
    for node in slurm.names:
        end_node(tmp_path / "nodes" / node)
    slurm.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (dashboard,) = free_ports(1)
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_urlsafe(32))
    return Settings(
        home=tmp_path, project=ROOT, launcher="ray", ray_address=f"http://127.0.0.1:{dashboard}", ray_token_file=token,
        ray_namespace=f"t{secrets.token_hex(6)}", ray_node_home=tmp_path / "nodes", node_memory_mb=0,
        control_url="http://127.0.0.1:9",
    )  # fmt: skip


def submitted(slurm: SlurmCluster, settings: Settings, output: Path) -> str:
    """The number of the job that has the whole cluster."""
    port, agents, client = free_ports(3)
    environ = {
        "PYTHON": sys.executable, "RAY_AUTH_TOKEN_PATH": str(settings.ray_token_file), "ELASTIC_SLOTS": "2",
        "ELASTIC_SLOT_TYPE": "cpu", "ELASTIC_RAY_NAMESPACE": settings.ray_namespace, "ELASTIC_PRICE_PER_SLOT_HOUR": "2",
        "ELASTIC_RAY_NODE_HOME": str(settings.node_home()), "ELASTIC_DRAIN_SECONDS": "60", "RAY_PORT": str(port),
        "RAY_DASHBOARD_PORT": settings.ray_address.rpartition(":")[2], "RAY_AGENT_PORT": str(agents),
        "RAY_HEAD_ADDRESS": "127.0.0.1", "RAY_NODE_IP": "127.0.0.1", "RAY_OBJECT_STORE_BYTES": "80000000",
        "RAY_CLIENT_PORT": str(client), "RAY_HEAD_FOLDER": f"/tmp/ray-{settings.ray_namespace}",
    }  # fmt: skip
    said = slurm.run("sbatch", "--parsable", "--nodes=3", f"--output={output}", str(SCRIPT_OF_SLURM), **environ)
    return said.strip()


def test_an_allocation_is_the_pool_and_is_drained_and_left_empty_before_it_ends(
    slurm: SlurmCluster, settings: Settings, tmp_path: Path
) -> None:
    output = tmp_path / "slurm.out"
    job = submitted(slurm, settings, output)
    reports = PoolReports(settings)

    def pool() -> RayPool:
        return reports.newest() or RayPool((), (), {})

    def comes_up() -> bool:
        try:
            return {node.name for node in pool().nodes} == set(slurm.names)
        except Exception:  # noqa: BLE001 - whatever a head that is not there yet answers
            return False

    try:
        wait_for(comes_up, 2 * SECONDS, pause=1.0)
        assert {(node.type, node.slots, node.price_per_slot_hour) for node in pool().nodes} == {("cpu", 2, 2.0)}
        assert f"ELASTIC_RAY_ADDRESS={settings.ray_address}" in output.read_text()

        launcher = RayLauncher(settings, worker_command=(sys.executable, "-S", str(SCRIPT), "sleep"))
        slots = tuple(Slot(node, 0, "cpu") for node in ("n2", "n3"))
        launcher.start(replace(order(), allocation=Allocation(slots=slots, global_batch=8, layout=Layout(data=2))))

        def workers() -> list[ProcessId]:
            known = [RunDir.of(settings.node_home() / node, 7).read(WorkerProcesses) for node in ("n2", "n3")]
            return [worker.process for found in known if found for worker in found.workers]

        wait_for(lambda: len(workers()) == 2, SECONDS, pause=0.5)
        slurm.run("scancel", "--signal=USR1", job)  # as Slurm does before the allocation ends
        wait_for(lambda: set(pool().draining) == set(slurm.names), SECONDS, pause=0.5)
        wait_for(lambda: "node n1 is empty" in output.read_text(), SECONDS, pause=0.5)
        assert all(process.alive() for process in workers())  # who drains ends nothing
        assert "node n2" not in output.read_text()
        launcher.stop(7, 0.0)  # as a job that has committed, and goes on elsewhere
        wait_for(lambda: "node n2 is empty" in output.read_text(), SECONDS, pause=0.5)
        wait_for(lambda: "node n3 is empty" in output.read_text(), SECONDS, pause=0.5)
    except BaseException:
        print(output.read_text() if output.exists() else "nothing was said")
        raise
    finally:
        slurm.run("scancel", job)
        wait_for(lambda: not slurm.run("squeue", "--noheader").strip(), SECONDS, pause=0.5)
