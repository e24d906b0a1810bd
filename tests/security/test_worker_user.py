"""Users' code as another Unix user, on a launcher with real processes: what holds of every group holds of these, and
what is root's stays root's. Executed and forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.host import fork_client
from elastic_core.host.environment import allowed
from elastic_core.host.messages import AgentProcess, WorkerProcesses, WorkersByRank
from elastic_core.host.process import FORKED_FROM, ProcessId, kill_marked, marked
from elastic_core.host.rundir import RUN_DIR, RunDir
from elastic_core.host.worker_user.identity import WorkerUser
from elastic_core.launch.debug import DebugLauncher
from elastic_core.launch.launcher import Launcher
from elastic_core.protocol.process_groups import ExitReport
from elastic_core.settings import Settings
from tests.effort import sample
from tests.launch import builders
from tests.launch.builders import agent_of, order, scripted, wait_for, wait_until_dead, wait_until_ready
from tests.launch.test_contract import (  # noqa: F401 - what every launcher keeps, with workers of another user
    local,
    test_groups_are_listed_until_they_are_forgotten,
    test_starting_again_is_harmless,
    test_the_end_of_a_group_is_known_by_its_exit_code,
)
from tests.launch.test_local import (  # noqa: F401 - the same; the others in test_worker_user_groups
    test_a_stop_lets_the_workers_reach_a_boundary,
    test_an_agent_killed_with_9_takes_its_workers_along_and_is_shown_dead,
    test_no_grandchild_is_left_when_the_group_ends,
)
from tests.security.worker_namespace import NAME, PROJECT, namespace, open_home


@pytest.fixture
def make() -> Callable[[Path, int], Launcher]:
    return local


@pytest.fixture(scope="module")
def user() -> Iterator[WorkerUser]:
    with namespace() as found:
        yield found


@contextmanager
def fork_server(home: Path, module: str) -> Iterator[None]:
    """Of a home, in this process's namespace."""
    folder = fork_client.folder_of(home)
    folder.mkdir(mode=0o700)
    with (folder / "log").open("ab") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", module, "--folder", str(folder)], stdout=output, stderr=output,
            env={**allowed(os.environ), FORKED_FROM: str(folder), "OPENBLAS_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for((folder / fork_client.SOCKET).exists, seconds=60)
        yield
    finally:
        server.kill()
        server.wait()


@pytest.fixture(params=sample(["executed", "forked"], "forked"))
def home(request: pytest.FixtureRequest, user: WorkerUser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home whose workers are the user's; whatever runs below it is ended with the test."""
    plain = builders.settings

    def with_user(home: Path, control_url: str = "http://127.0.0.1:9") -> Settings:
        return plain(home, control_url).model_copy(update={"worker_user": NAME, "project": PROJECT})

    monkeypatch.setattr(builders, "settings", with_user)
    with open_home() as found:
        if request.param == "forked":
            with fork_server(found, "tests.launch.fork_server_of_scripts"):
                yield found
        else:
            yield found
        for path in (found / "run").glob("*"):
            agent = RunDir(path).read(AgentProcess)
            if agent:
                agent.process.send(signal.SIGKILL)
            kill_marked(RUN_DIR, str(path))


def of(process: ProcessId, *names: str) -> list[str]:
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return [
        value.strip() for name in names for key, _, value in (line.partition(":") for line in status) if key == name
    ]


def test_workers_are_the_users_and_their_agent_is_roots(home: Path, user: WorkerUser) -> None:
    launcher = scripted(home, "sleep")
    launcher.start(order())
    workers = wait_until_ready(launcher)
    four = "\t".join([str(user.uid)] * 4)
    for worker in workers:
        assert of(worker, "Uid", "Gid", "Groups", "CapEff", "NoNewPrivs", "Umask") == [
            four, four, "", f"{0:016x}", "1", "0077"
        ]  # fmt: skip
    assert of(agent_of(launcher), "Uid") == ["\t".join(["0"] * 4)]
    assert {process.pid for process in marked(RUN_DIR, str(RunDir.of(home, 7).path))} == {w.pid for w in workers}


def test_the_user_reads_of_the_home_what_its_group_is_told_and_no_more(home: Path, user: WorkerUser) -> None:
    for name in ("secrets", "airflow", "services", "logs"):
        (home / name).mkdir(mode=0o700)
        (home / name / "canary").touch(0o600)
    launcher = scripted(home, "sleep")
    launcher.start(order())
    wait_until_ready(launcher)
    wait_for(lambda: RunDir.of(home, 7).read(WorkersByRank))
    folder, folders = RunDir.of(home, 7).path, " ".join(str(path) for path in (home, *home.rglob("*")) if path.is_dir())
    readable = set(run_as(user, f"find {folders} -type f -readable 2>/dev/null").split())
    names = {path.relative_to(folder).as_posix() for path in map(Path, readable)}
    assert names == {
        "agent.json", "order.json", "ranks.json", "ready0", "ready1", "settings.json", "spawn.json", "workers.json"
    }  # fmt: skip
    writable = set(run_as(user, f"find {folders} -writable 2>/dev/null").split())
    assert writable == {
        *(str(folder / name) for name in ("order.json", "ready0", "ready1")),
        str(folder),
        str(home / "store" / "job"),
    }
    agent = agent_of(launcher).pid
    closed = f"cat /proc/{agent}/environ || cat /proc/{agent}/maps || kill -0 {agent} || ls {home} || ls {folder}/logs"
    assert run_as(user, f"({closed}) 2>/dev/null; echo $?") == "2\n"


def run_as(user: WorkerUser, script: str) -> str:
    done = subprocess.run(
        ["sh", "-c", script],
        user=user.uid,
        group=user.gid,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_a_broken_mailbox_ends_its_group_and_no_other_and_reconciliation_goes_on(home: Path, user: WorkerUser) -> None:
    launcher = scripted(home, "stubborn")
    for epoch in (7, 8):
        launcher.start(order(origin_epoch=epoch))
        wait_until_ready(launcher, origin_epoch=epoch)
    folder, canary = RunDir.of(home, 7), home / "canary"
    canary.write_text('{"segment_id": "stolen", "allocation": {"slots": []}}')
    canary.chmod(0o600)
    planted = "".join(f"ln -sfn {canary} {name}; " for name in ("order.json", "exit.json", "error-rank0.json"))
    run_as(
        user, f"cd {folder.path}; {planted} mkfifo wanted.json; ln -s {canary} stop.json; ln -s /proc/1 serving-0.json"
    )
    assert os.path.islink(folder.path / "order.json")
    report = wait_for_report(folder)
    assert report.kind == "infrastructure"
    assert "order.json cannot be used: it is a link" in report.error
    assert [(group.origin_epoch, group.segment_id, group.alive) for group in launcher.groups()] == [
        (7, "", False), (8, "job__seg_0", True)
    ]  # fmt: skip
    assert "stolen" not in repr(launcher.poll(7))
    assert canary.read_text().startswith('{"segment_id": "stolen"')
    launcher.forget(7)
    assert canary.exists()
    assert [group.origin_epoch for group in launcher.groups()] == [8]


def wait_for_report(folder: RunDir) -> ExitReport:
    wait_for(folder.exit_report)
    report = folder.exit_report()
    assert report is not None
    return report


def test_a_group_that_says_by_itself_that_it_is_over_is_not_believed(home: Path, user: WorkerUser) -> None:
    launcher = scripted(home, "boundary")
    launcher.start(order())
    workers, folder = wait_until_ready(launcher), RunDir.of(home, 7)
    run_as(
        user,
        f"cd {folder.path} && mkdir stop.json && touch -d 2001-01-01 exit.json",
    )
    assert launcher.poll(7).alive
    assert launcher.remove_ended(1e9) == 0
    assert all(worker.alive() for worker in workers)
    launcher.stop(7, 10)  # over what lies in its way
    assert wait_until_dead(launcher).exit.exit_codes == (0, 0)


def test_a_group_whose_order_is_hidden_whenever_others_look_is_stopped_all_the_same(
    home: Path, user: WorkerUser
) -> None:
    launcher = scripted(home, "stubborn")
    launcher.start(order())
    workers, folder, agent = wait_until_ready(launcher), RunDir.of(home, 7), agent_of(launcher)
    agent.send(signal.SIGSTOP)  # between two of its looks
    run_as(user, f"cd {folder.path} && mv order.json aside")
    hidden = launcher.groups()
    run_as(user, f"cd {folder.path} && mv aside order.json")
    agent.send(signal.SIGCONT)
    assert [(group.origin_epoch, group.alive) for group in hidden] == [(7, True)]
    launcher.stop(7, grace_seconds=0)
    wait_until_dead(launcher)
    assert not any(worker.alive() for worker in workers)


def test_a_users_stray_cannot_hide_from_the_end_of_its_group(home: Path) -> None:
    launcher = scripted(home, "daemon,sleep")
    launcher.start(order())
    workers = wait_until_ready(launcher)
    os.kill(workers[1].pid, signal.SIGKILL)
    wait_until_dead(launcher)
    assert RunDir.of(home, 7).require(WorkerProcesses)
    assert not any(worker.alive() for worker in workers)


def test_the_debug_launcher_is_refused(home: Path) -> None:
    with pytest.raises(
        UserError, match=rf"caller's own process, and ELASTIC_WORKER_USER is '{NAME}'; unset it, or use"
    ):
        DebugLauncher(builders.settings(home)).start(order(num_slots=1))


def test_a_folder_of_the_store_that_is_no_jobs_is_not_given(home: Path) -> None:
    (home / "store" / "job" / "of somebody").mkdir(parents=True)
    with pytest.raises(
        UserError, match=r"store/job holds something else than the checkpoints of a job, and is not given"
    ):
        scripted(home, "sleep").start(order())
    assert (home / "store" / "job").stat().st_uid == 0
