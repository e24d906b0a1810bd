"""`elastic down` and the training processes: asked first, firm after the grace, none left."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from elastic_core.host.process import marked
from elastic_core.host.rundir import RUN_DIR, RunDir
from elastic_core.services import groups
from elastic_core.services.groups import stop_groups
from elastic_core.settings import Settings
from elastic_core.state.memory_tier import cache_servers
from tests.launch.builders import agent_of, order, scripted, the_stray, wait_until_ready
from tests.launch.conftest import executing_home as launch_home

home = launch_home


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens where these agents report to, and one of them never moves: no need to wait long for that."""
    monkeypatch.setattr(groups, "DELIVERY_SECONDS", 0.5)
    monkeypatch.setattr(groups, "FIRM_SECONDS", 2.0)


def stop(home: Path, grace_seconds: float) -> tuple[int, float]:
    start = time.monotonic()
    return stop_groups(Settings(home=home, grace_seconds=grace_seconds)), time.monotonic() - start


def test_processes_that_obey_have_the_time_to_commit_and_are_not_killed(home: Path) -> None:
    launcher = scripted(home, "boundary")
    launcher.start(order())
    workers = wait_until_ready(launcher)
    stopped, seconds = stop(home, grace_seconds=60.0)
    assert stopped == 1
    assert seconds < 40
    assert RunDir.of(home, 7).read_json("exit.json")["exit_codes"] == [0, 0]
    assert [process for process in (*workers, agent_of(launcher)) if process.alive()] == []


def test_processes_that_do_not_obey_are_ended_after_the_grace(home: Path) -> None:
    launcher = scripted(home, "stubborn,parent")
    launcher.start(order())
    workers = wait_until_ready(launcher)
    stop(home, grace_seconds=1.0)
    assert [process for process in (*workers, agent_of(launcher)) if process.alive()] == []
    assert marked(RUN_DIR, str(RunDir.of(home, 7).path)) == []


def test_an_agent_that_hangs_is_ended_with_its_workers_and_with_what_has_hidden(home: Path) -> None:
    launcher = scripted(home, "daemon,sleep")
    launcher.start(order())
    workers = wait_until_ready(launcher)
    agent = agent_of(launcher)
    stray = the_stray(launcher, workers)
    agent.send(signal.SIGSTOP)
    stop(home, grace_seconds=0.5)
    assert [process for process in (*workers, agent, stray) if process.alive()] == []


def test_without_groups_nothing_is_waited_for(tmp_path: Path) -> None:
    assert stop(tmp_path, grace_seconds=60.0)[0] == 0


def test_what_the_nodes_keep_in_memory_ends_too(home: Path) -> None:
    settings = Settings(home=home)
    cache_servers.wait(cache_servers.start(settings, ["n0", "n1"]))
    found = [process for node in ("n0", "n1") if (process := cache_servers._process(home / "memory", node))]
    assert [server.alive() for server in found] == [True, True]
    assert stop_groups(settings) == 0
    assert [server.alive() for server in found] == [False, False]


def test_where_training_runs_on_ray_what_this_machine_has_for_it_ends_too(home: Path) -> None:
    settings = Settings(home=home, launcher="ray", ray_address="http://127.0.0.1:9", ray_namespace="n")
    cache_servers.wait(cache_servers.start(settings, ["n0"]))
    server = cache_servers._process(home / "memory", "n0")
    assert server is not None
    assert server.alive()
    assert stop_groups(settings) == 0  # the cluster does not answer
    assert not server.alive()
