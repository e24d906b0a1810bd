"""What the Ray launcher promises beyond the contract (tests/launch/test_contract.py), on a real cluster of one node."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.messages import AgentProcess, WorkerProcesses
from elastic_core.host.process import ProcessId, marked
from elastic_core.host.rundir import RUN_DIR
from elastic_core.launch.launcher import GroupStatus
from elastic_core.launch.on_ray.log_requests import NodeLog
from elastic_core.launch.on_ray.ray_launcher import COORDINATOR, RayLauncher
from elastic_core.launch.worker_logs.followed import FollowedLog
from elastic_core.launch.worker_logs.kept import KeptLogs
from tests.e2e.platform import PATIENCE
from tests.launch.builders import order, settings, wait_for, wait_until_dead
from tests.launch.conftest import OnRay

SECONDS = 60.0 * PATIENCE  # Ray starts its processes one after the other
pytestmark = pytest.mark.timeout(300 * PATIENCE)


def started(on_ray: OnRay, behaviours: str, num_slots: int = 2) -> tuple[RayLauncher, list[ProcessId]]:
    """A launcher and its group's workers, once they live."""
    launcher, folder = on_ray.scripted(behaviours), on_ray.run_dir()
    launcher.start(order(num_slots=num_slots))
    ready = [folder.path / f"ready{rank}" for rank in range(num_slots)]
    wait_for(lambda: all(path.exists() for path in ready), SECONDS, pause=0.1)
    wait_for(lambda: (known := folder.read(WorkerProcesses)) and len(known.workers) == num_slots, SECONDS, pause=0.1)
    return launcher, [worker.process for worker in folder.require(WorkerProcesses).workers]


def dead(launcher: RayLauncher) -> GroupStatus:
    wait_for(lambda: not launcher.poll(7).alive, SECONDS, pause=0.2)
    return launcher.poll(7)


def processes_of(module: str, word: str) -> list[ProcessId]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        process = ProcessId.of(int(path.name))
        if module in words and word in words and process:
            found.append(process)
    return found


def test_submitted_twice_there_is_one_group(on_ray: OnRay) -> None:
    launcher, workers = started(on_ray, "sleep")
    again = on_ray.scripted("exit:0").start(order())  # of an Airflow worker that knows nothing of the first
    assert again.alive
    assert len(processes_of(COORDINATOR, f"{on_ray.settings.ray_namespace}-7")) == 1
    assert [worker.process for worker in on_ray.run_dir().require(WorkerProcesses).workers] == workers
    assert all(worker.alive() for worker in workers)
    launcher.stop(7, 0.5)
    assert dead(launcher).exit.kind == "stopped"


def test_a_wrong_token_is_refused_whatever_is_asked(on_ray: OnRay, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong-token"
    wrong.write_text("no token of this cluster")
    launcher = RayLauncher(on_ray.settings.model_copy(update={"ray_token_file": wrong}))
    for ask in (
        lambda: launcher.start(order()), lambda: launcher.poll(7), launcher.groups, lambda: launcher.stop(7, 1),
        lambda: launcher.forget(7), lambda: launcher.remove_ended(0.0), lambda: launcher.ranks_with_logs(7),
    ):  # fmt: skip
        with pytest.raises(InfrastructureError, match=r"refuses the token in .*wrong-token \(403"):
            ask()
    assert on_ray.scripted("sleep").groups() == []


def test_without_address_or_token_it_says_what_to_set(tmp_path: Path) -> None:
    plain = settings(tmp_path)
    with pytest.raises(UserError, match="needs ELASTIC_RAY_ADDRESS"):
        RayLauncher(plain)
    with pytest.raises(UserError, match="needs ELASTIC_RAY_TOKEN_FILE, a file with the token"):
        RayLauncher(plain.model_copy(update={"ray_address": "http://127.0.0.1:1"}))
    with pytest.raises(UserError, match="ELASTIC_WORKER_USER is 'jobs'"):
        RayLauncher(plain.model_copy(update={"worker_user": "jobs"}))


def test_no_process_of_a_group_has_the_clusters_token_or_anything_of_ray(on_ray: OnRay) -> None:
    launcher, workers = started(on_ray, "sleep", num_slots=1)
    token = on_ray.cluster.token_file.read_text()
    agent = on_ray.run_dir().require(AgentProcess).process
    group = marked(RUN_DIR, str(on_ray.run_dir().path))
    assert set(workers) <= set(group)
    for process in {agent, *group}:
        environ = Path(f"/proc/{process.pid}/environ").read_text()
        assert token not in environ
        assert "RAY_" not in environ
        assert str(on_ray.cluster.token_file) not in environ
    for path in on_ray.node_home.rglob("*"):
        assert not path.is_file() or token.encode() not in path.read_bytes()
    launcher.stop(7, 0.5)
    dead(launcher)


def test_what_ray_keeps_of_a_group_holds_no_token_of_its_segment(on_ray: OnRay) -> None:
    launcher, _ = started(on_ray, "sleep", num_slots=1)
    kept = launcher._api._send("GET", "/api/jobs/").text
    assert f"{on_ray.settings.ray_namespace}-7" in kept
    assert order().token not in kept
    assert order().agent_token not in kept
    launcher.stop(7, 0.5)
    dead(launcher)


def test_stop_gives_workers_their_grace_and_then_kills(on_ray: OnRay) -> None:
    launcher, workers = started(on_ray, "boundary,stubborn")
    launcher.stop(7, 2.0)
    launcher.stop(7, 2.0)
    report = dead(launcher).exit
    assert not any(worker.alive() for worker in workers)
    assert report.exit_codes == (0, -9)
    assert report.kind == "stopped"


def test_a_group_that_is_stopped_before_anything_of_it_runs_does_not_start_afterwards(on_ray: OnRay) -> None:
    launcher = on_ray.scripted("sleep")
    launcher.start(order())
    launcher.stop(7, 1.0)
    dead(launcher)
    known = on_ray.run_dir().read(WorkerProcesses)
    assert not any(worker.process.alive() for worker in (known.workers if known else ()))


def test_forgetting_a_group_leaves_those_of_an_installation_whose_name_begins_alike(on_ray: OnRay) -> None:
    launcher = on_ray.scripted("exit:0")
    alike = on_ray.settings.model_copy(update={"ray_namespace": f"{on_ray.settings.ray_namespace}-7"})
    other = RayLauncher(alike, worker_command=launcher.worker_command)
    for one, epoch in ((launcher, 7), (other, 1)):
        one.start(order(num_slots=1, origin_epoch=epoch))
        wait_until_dead(one, epoch)
    launcher.forget(7)
    assert launcher.groups() == []
    assert [group.origin_epoch for group in other.groups()] == [1]


def test_a_killed_node_actor_comes_again_and_training_goes_on(on_ray: OnRay) -> None:
    launcher, workers = started(on_ray, "sleep")
    name = "ray::NodeActor"
    actors = [p for p in map(int, _pids()) if _title(p).startswith(name) and _in_cluster(p, on_ray)]
    assert actors
    for pid in actors:
        ProcessId.of(pid).send(signal.SIGKILL)
    heard = on_ray.run_dir().path / "heard.json"
    killed_at = heard.stat().st_mtime
    wait_for(lambda: heard.stat().st_mtime > killed_at + 1, SECONDS, pause=0.2)  # the next one notes it
    assert launcher.poll(7).alive
    assert all(worker.alive() for worker in workers)
    launcher.stop(7, 0.5)
    assert dead(launcher).exit.kind == "stopped"


def test_a_group_whose_coordinator_is_killed_is_alive_until_nothing_of_it_is_left(on_ray: OnRay) -> None:
    launcher, workers = started(on_ray, "sleep")
    (coordinator,) = processes_of(COORDINATOR, f"{on_ray.settings.ray_namespace}-7")
    coordinator.send(signal.SIGKILL)
    report = dead(launcher).exit
    assert not any(worker.alive() for worker in workers)
    assert report.kind == "stopped" or "ended without a word" in report.error
    launcher.forget(7)
    assert launcher.groups() == []


def test_what_a_rank_prints_is_read_from_its_node_and_followed_from_there(on_ray: OnRay, tmp_path: Path) -> None:
    launcher, _ = started(on_ray, "sleep")
    wait_for(lambda: launcher.ranks_with_logs(7) == 2, SECONDS, pause=0.2)
    log = launcher.log_of(7, 1)
    assert log is not None
    part = log.read(None, 1000)
    assert part.text == "rank 1 of 2 does sleep\n"
    assert log.read(5, 1000).text == part.text[5:]
    assert log.read(part.end, 1000).text == ""
    assert launcher.log_of(7, 2) is None
    follower = FollowedLog(tmp_path, launcher.log_of, 7, "job", "job__seg_0")
    assert follower.next_lines() == ["rank 0 of 2 does sleep"]
    assert follower.next_lines() == []
    launcher.stop(7, 0.5)
    dead(launcher)


def test_the_end_of_what_ranks_printed_is_read_once_ray_has_forgotten_them_or_their_node_does_not_answer(
    on_ray: OnRay,
) -> None:
    launcher, _ = started(on_ray, "sleep")
    wait_for(lambda: launcher.ranks_with_logs(7) == 2, SECONDS, pause=0.2)
    log = launcher.log_of(7, 1)
    assert isinstance(log, NodeLog)
    launcher.stop(7, 0.5)
    dead(launcher)
    wait_for(lambda: KeptLogs.of(on_ray.settings).ranks(7) == 2, SECONDS, pause=0.2)
    away = replace(log, name=log.name.replace(urlsplit(log.name).netloc, "127.0.0.1:9"))
    assert away.read(None, 1000) == log.read(None, 1000)
    assert replace(log, name=f"{log.name}.gone.log").read(5, 1000) == log.read(5, 1000)
    launcher.forget(7)
    assert launcher.groups() == []
    assert launcher.ranks_with_logs(7) == 2
    assert launcher.log_of(7, 1).read(None, 1000).text == "rank 1 of 2 does sleep\n"
    assert launcher.log_of(7, 2) is None


def test_of_a_rank_of_which_nothing_was_kept_there_is_no_log(on_ray: OnRay, tmp_path: Path) -> None:
    printed = tmp_path / "rank1.log"
    printed.write_text("a line\n")
    KeptLogs.of(on_ray.settings).keep(71, {1: printed})
    launcher = RayLauncher(on_ray.settings)
    assert launcher.ranks_with_logs(71) == 2
    assert launcher.log_of(71, 0) is None, "its node was lost"
    assert launcher.log_of(71, 1).read(None, 1000).text == "a line\n"


def test_a_node_that_does_not_answer_and_has_kept_nothing_is_said(on_ray: OnRay) -> None:
    kept = KeptLogs.of(on_ray.settings).log_of(7, 0)
    with pytest.raises(InfrastructureError, match=r"the log at http://127.0.0.1:9/logs/rank0.log cannot be read"):
        NodeLog("http://127.0.0.1:9/logs/rank0.log", "token", kept).read(None, 1000)


def _pids() -> list[str]:
    return [path.name for path in Path("/proc").glob("[0-9]*")]


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""


def _in_cluster(pid: int, on_ray: OnRay) -> bool:
    try:
        return str(on_ray.cluster.token_file) in Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return False
