"""What every launcher keeps; run over all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.host import fork_client
from elastic_core.host.rundir import RunDir
from elastic_core.launch.debug import DebugLauncher
from elastic_core.launch.launcher import Launcher
from elastic_core.launch.launchers import launcher as launcher_named
from elastic_core.launch.local import LocalLauncher
from tests.launch.builders import order, scripted, settings, wait_until_dead
from tests.launch.conftest import OnRay

Make = Callable[[Path, int], Launcher]


def debug(home: Path, exit_code: int) -> Launcher:
    return DebugLauncher(settings(home), worker=lambda _run_dir, _rank: exit_code)


def local(home: Path, exit_code: int) -> Launcher:
    return scripted(home, f"exit:{exit_code}")


@pytest.fixture(params=["local", "local, forked", "debug", "ray"])
def home(request: pytest.FixtureRequest, executing_home: Path) -> Path:
    if request.param == "local, forked":
        fork_client.folder_of(executing_home).symlink_to(request.getfixturevalue("fork_server_of_scripts"))
    return executing_home


@pytest.fixture
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    kind = request.node.callspec.params["home"]
    if kind == "ray":
        on_ray: OnRay = request.getfixturevalue("on_ray")
        return lambda home, exit_code: on_ray.scripted(f"exit:{exit_code}")
    monkeypatch.setattr("elastic_core.launch.debug.PATIENCE_SECONDS", 0.0)
    return debug if kind == "debug" else local


@pytest.mark.parametrize(
    ("exit_code", "want"), [(0, "boundary"), (10, "user_error"), (11, "infrastructure"), (12, "stopped")]
)
def test_the_end_of_a_group_is_known_by_its_exit_code(home: Path, make: Make, exit_code: int, want: str) -> None:
    launcher = make(home, exit_code)
    launcher.start(order(num_slots=1))
    status = wait_until_dead(launcher)
    assert status.exit.kind == want
    assert status.exit.exit_codes == (exit_code,)
    assert status.ended_at is not None


def test_starting_again_is_harmless(home: Path, make: Make) -> None:
    make(home, 0).start(order(num_slots=1))
    wait_until_dead(make(home, 0))
    status = make(home, 3).start(order(num_slots=1))  # another launcher of the same host
    assert not status.alive
    assert status.exit.exit_codes == (0,)


def test_groups_are_listed_until_they_are_forgotten(home: Path, make: Make) -> None:
    launcher = make(home, 0)
    for origin_epoch in (3, 12):
        launcher.start(order(num_slots=1, origin_epoch=origin_epoch))
        wait_until_dead(launcher, origin_epoch)
    assert [(group.origin_epoch, group.alive) for group in launcher.groups()] == [(3, False), (12, False)]
    launcher.forget(3)
    launcher.forget(3)
    assert [group.origin_epoch for group in launcher.groups()] == [12]
    assert launcher.poll(3) is None


def test_a_group_that_never_was_is_nothing(home: Path, make: Make) -> None:
    launcher = make(home, 0)
    assert launcher.poll(99) is None
    assert launcher.groups() == []
    launcher.stop(99, 1)
    launcher.forget(99)


def test_debug_runs_in_this_process_with_the_ranks_environment(
    executing_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.setattr("elastic_core.launch.debug.PATIENCE_SECONDS", 0.0)
    monkeypatch.setenv("WORLD_SIZE", "what it was")
    before, seen = dict(os.environ), dict[str, str]()

    def worker(run_dir: Path, rank: int) -> int:
        os.environ["RANK_OF_A_WORKER"] = str(rank)
        seen.update(os.environ, pid=str(os.getpid()), segment=RunDir(run_dir).order().segment_id)
        return 0

    DebugLauncher(settings(executing_home), worker).start(order(num_slots=1))
    assert seen["pid"] == str(os.getpid())
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["segment"]) == ("0", "1", "job__seg_0")
    assert dict(os.environ) == before


def test_debug_refuses_more_than_one_slot(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"runs one slot, and segment job__seg_0 was granted 2; set slots.max to 1"):
        DebugLauncher(settings(tmp_path)).start(order(num_slots=2))


def test_launchers_are_found_by_name(tmp_path: Path) -> None:
    assert isinstance(launcher_named("local", settings(tmp_path)), LocalLauncher)
    assert isinstance(launcher_named("debug", settings(tmp_path)), DebugLauncher)
    with pytest.raises(UserError, match="there is no launcher 'slurm'; there are: debug, local, ray"):
        launcher_named("slurm", settings(tmp_path))
