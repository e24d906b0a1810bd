from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from elastic_core.host import fork_client
from elastic_core.host.environment import allowed
from elastic_core.host.messages import AgentProcess
from elastic_core.host.process import FORKED_FROM, kill_marked
from elastic_core.host.rundir import RUN_DIR, RunDir
from elastic_core.launch.on_ray.ray_launcher import RayLauncher
from elastic_core.settings import Settings
from tests.launch.builders import SCRIPT, settings, wait_for
from tests.launch.ray_nodes import RayCluster, skip_without_ray


@pytest.fixture(scope="session")
def fork_server_of_scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a real fork server, which forks into scripted workers too."""
    with _fork_server(tmp_path_factory.mktemp("forking"), "tests.launch.fork_server_of_scripts") as folder:
        yield folder


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the platform's own, which has loaded torch."""
    with _fork_server(tmp_path_factory.mktemp("preloaded"), "elastic_core.launch.fork_server") as folder:
        yield folder


@contextmanager
def _fork_server(home: Path, module: str) -> Iterator[Path]:
    folder = fork_client.folder_of(home)
    folder.mkdir(mode=0o700)
    environ = {**allowed(os.environ), FORKED_FROM: str(folder), "OPENBLAS_NUM_THREADS": "1"}
    with (folder / "fork-server.log").open("ab") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", module, "--folder", str(folder)],
            stdout=output, stderr=output, env=environ, start_new_session=True,
        )  # fmt: skip
    wait_for((folder / fork_client.SOCKET).exists, seconds=60)
    yield folder
    server.kill()
    server.wait()


@pytest.hookimpl(tryfirst=True)  # before the expression of `-m` is asked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On hosts as a platform's are, whose workers are forked; on those without it the launcher's contract alone, and in
    `make nightly` all the rest."""
    for item in items:
        case = getattr(item, "callspec", None)
        if case is not None and case.params.get("home") == "executed" and item.path.stem != "test_contract":
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(params=["executed", "forked"])
def home(request: pytest.FixtureRequest, executing_home: Path) -> Path:
    """A folder for state, of a host without a fork server and of one with: what holds of workers does so on both."""
    if request.param == "forked":
        fork_client.folder_of(executing_home).symlink_to(request.getfixturevalue("fork_server_of_scripts"))
    return executing_home


@pytest.fixture
def preloaded_home(executing_home: Path, fork_server: Path) -> Path:
    """Of a host whose workers are forked from a process that has loaded torch, as a platform's are."""
    fork_client.folder_of(executing_home).symlink_to(fork_server)
    return executing_home


@pytest.fixture
def executing_home(tmp_path: Path) -> Iterator[Path]:
    """A folder for state; whatever runs below it is ended with the test."""
    yield tmp_path
    end_groups(tmp_path)


def end_groups(home: Path) -> None:
    for path in (home / "run").glob("*"):
        agent = RunDir(path).read(AgentProcess)
        if agent and agent.pid != os.getpid():  # the debug launcher's agent is this process
            agent.process.send(signal.SIGKILL)
        kill_marked(RUN_DIR, str(path))


@dataclass
class OnRay:
    """An installation of a test's own on the session's Ray cluster of one node, n0 with 4 slots."""

    cluster: RayCluster
    settings: Settings

    @property
    def node_home(self) -> Path:
        return self.settings.node_home() / "n0"

    def run_dir(self, origin_epoch: int = 7) -> RunDir:
        return RunDir.of(self.node_home, origin_epoch)

    def scripted(self, behaviours: str) -> RayLauncher:
        return RayLauncher(self.settings, worker_command=(sys.executable, "-S", str(SCRIPT), behaviours))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    skip_without_ray()
    cluster = RayCluster(slots=4)
    yield cluster
    cluster.close()


@pytest.fixture
def on_ray(executing_home: Path, request: pytest.FixtureRequest) -> Iterator[OnRay]:
    cluster: RayCluster = request.getfixturevalue("ray_cluster")
    base = settings(executing_home).model_dump(include={"control_url", "grace_seconds", "node_memory_mb"})
    here = OnRay(cluster, cluster.settings(executing_home, **base))
    here.node_home.mkdir(parents=True)
    fork_client.folder_of(here.node_home).symlink_to(request.getfixturevalue("fork_server_of_scripts"))
    yield here
    end_groups(here.node_home)
