"""A group of real processes: started once, watched, stopped, and nothing of it left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import EXIT, AccessBrokerProcess, AgentProcess, SpawnPlan
from elastic_core.host.process import ProcessId, marked
from elastic_core.host.rundir import RUN_DIR, RunDir
from elastic_core.host.steady_clock import SteadyClock
from elastic_core.host.workers import CPU_NICE
from elastic_core.launch.local import LocalLauncher
from elastic_core.launch.workers.worker_group import LEASE_MARGIN, Group
from elastic_core.state.job_code import pinned_code
from elastic_core.state.store_access import access_brokers
from tests.disks import full_disk
from tests.launch.builders import (
    AGENT_TOKEN,
    SCRIPT,
    TOKEN,
    agent_of,
    order,
    scripted,
    settings,
    wait_for,
    wait_until_dead,
    wait_until_ready,
    workers_of,
)
from tests.processes import children
from tests.train.ledger import FolderLedger


def memory_of(process: ProcessId) -> bytes:
    """All that the process could read of its own memory."""
    pieces = []
    with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if rights.startswith("rw"):
                begin, end = (int(text, 16) for text in span.split("-"))
                memory.seek(begin)
                pieces.append(memory.read(end - begin))
    return b"".join(pieces)


def processes(launcher: LocalLauncher) -> list[ProcessId]:
    return marked(RUN_DIR, str(RunDir.of(launcher.home, 7).path))


def test_where_memory_runs_out_the_kernel_ends_workers_before_their_agent(home: Path) -> None:
    launcher = scripted(home, "sleep")
    launcher.start(order())
    workers = wait_until_ready(launcher)
    assert {worst(worker) for worker in workers} == {500}
    assert worst(agent_of(launcher)) < 500
    launcher.stop(7, grace_seconds=0)
    wait_until_dead(launcher)


def test_an_agent_takes_back_that_whoever_starts_it_is_ended_first(home: Path) -> None:
    """As all that Ray starts is."""
    start = (
        "from pathlib import Path; Path('/proc/self/oom_score_adj').write_text('1000'); import sys; "
        "from tests.launch.builders import order, scripted; scripted(Path(sys.argv[1]), 'sleep').start(order())"
    )
    subprocess.run([sys.executable, "-c", start, str(home)], check=True)
    launcher = scripted(home, "sleep")
    workers = wait_until_ready(launcher)
    assert worst(agent_of(launcher)) == 0
    assert {worst(worker) for worker in workers} == {500}
    launcher.stop(7, grace_seconds=0)
    wait_until_dead(launcher)


def worst(process: ProcessId) -> int:
    return int(Path(f"/proc/{process.pid}/oom_score_adj").read_text())


def test_every_slot_gets_one_worker_and_a_log_of_its_own(home: Path) -> None:
    launcher = scripted(home, "sleep")
    status = launcher.start(order(num_slots=3))
    assert status.alive
    assert status.segment_id == "job__seg_0"
    assert len(wait_until_ready(launcher, 3)) == 3
    assert "rank 0 of 3 does sleep" in Path(status.log_path).read_text()
    assert "rank 2 of 3 does sleep" in RunDir.of(home, 7).log(2).read_text()


@pytest.mark.parametrize(("slot_type", "niceness"), [("cpu", CPU_NICE), ("a100", 0)])
def test_training_on_cores_gives_way_to_the_services(home: Path, slot_type: str, niceness: int) -> None:
    launcher = scripted(home, "sleep")
    launcher.start(order(slot_type=slot_type))
    for worker in wait_until_ready(launcher):
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == niceness + os.getpriority(os.PRIO_PROCESS, 0)
        group = Path(f"/proc/{worker.pid}/autogroup")
        if group.exists() and group.read_text():  # sessions are weighed as a whole
            assert group.read_text().split()[-1] == str(niceness)


def test_a_second_start_finds_the_running_group(home: Path) -> None:
    launcher = scripted(home, "sleep")
    launcher.start(order())
    workers = wait_until_ready(launcher)
    assert launcher.start(order()).alive
    assert workers_of(RunDir.of(home, 7)) == workers
    assert len(processes(launcher)) == 2


def test_starts_at_the_same_time_start_one_agent(home: Path) -> None:
    launchers = [scripted(home, "sleep") for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        statuses = list(pool.map(lambda launcher: launcher.start(order()), launchers))
    assert all(status.alive for status in statuses)
    wait_until_ready(launchers[0])
    assert len(processes(launchers[0])) == 2


def test_a_launcher_that_died_between_claim_and_spawn_blocks_nobody(home: Path) -> None:
    code = (
        "import sys, os; from pathlib import Path; from tests.launch.builders import *\n"
        "LocalLauncher._spawn_agent = lambda *_: os.kill(os.getpid(), 9)\n"
        f"scripted(Path({str(home)!r}), 'sleep').start(order())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    launcher = scripted(home, "sleep")
    assert launcher.groups() == []
    assert launcher.start(order()).alive


def test_a_group_that_ended_is_not_started_again(home: Path) -> None:
    launcher = scripted(home, "exit:0")
    launcher.start(order())
    wait_until_dead(launcher)
    agent = agent_of(launcher)
    assert not launcher.start(order()).alive
    assert agent_of(launcher) == agent


def test_an_agent_that_cannot_start_is_said_with_its_log(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_core.launch.local.AGENT", "elastic_core.launch.no_such_module")
    with pytest.raises(InfrastructureError, match=r"agent of segment job__seg_0 did not start; .*no_such_module"):
        scripted(home, "sleep").start(order())


def test_a_cluster_file_that_cannot_be_read_now_is_no_error_of_the_jobs(home: Path) -> None:
    """Whoever edits it is about to write the rest: a user's error would end the segment's run at once."""
    launcher = scripted(home, "sleep")
    half_written = home / "cluster.json"
    half_written.write_text('{"nodes": [')
    launcher.settings = launcher.settings.model_copy(update={"cluster": half_written})
    with pytest.raises(InfrastructureError, match=r"cluster\.json cannot be used"):
        launcher.start(order())


@pytest.mark.parametrize("kill", ["the process", "its process group"])
def test_the_group_outlives_whoever_started_it(home: Path, kill: str) -> None:
    code = (
        "import time; from pathlib import Path; from tests.launch.builders import *\n"
        f"launcher = scripted(Path({str(home)!r}), 'sleep'); launcher.start(order()); wait_until_ready(launcher)\n"
        "print('started', flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"started\n"
    assert children(parent.pid) == []  # nothing of it hangs in the tree of the one who started it
    (os.kill if kill == "the process" else os.killpg)(parent.pid, signal.SIGKILL)
    parent.wait()
    launcher = scripted(home, "sleep")
    status = launcher.poll(7)
    assert status is not None
    assert status.alive
    assert len(processes(launcher)) == 2


def test_a_worker_killed_with_9_is_noticed_at_once_and_named(home: Path) -> None:
    launcher = scripted(home, "sleep,boundary")
    launcher.start(order())
    os.kill(wait_until_ready(launcher)[0].pid, signal.SIGKILL)
    log = RunDir.of(home, 7).path / "logs" / "agent.log"
    assert wait_for(lambda: "rank 0" in log.read_text()) < 1.0
    report = wait_until_dead(launcher).exit
    assert report is not None
    assert report.kind == "infrastructure"
    assert report.error.startswith("rank 0 was killed by SIGKILL")
    assert "rank 0 of 2 does sleep" in report.log_tail


def test_when_one_worker_dies_the_others_are_ended_soon(home: Path) -> None:
    launcher = scripted(home, "exit:3,stubborn")
    launcher.start(order())
    report = wait_until_dead(launcher, seconds=15).exit
    assert report is not None
    assert report.exit_codes == (3, -9)
    assert report.error == "rank 0 ended with exit code 3"
    assert processes(launcher) == []


def test_a_stop_lets_the_workers_reach_a_boundary(home: Path) -> None:
    launcher = scripted(home, "boundary")
    launcher.start(order())
    wait_until_ready(launcher)
    launcher.stop(7, grace_seconds=30)
    report = wait_until_dead(launcher).exit
    assert report is not None
    assert (report.kind, report.exit_codes) == ("boundary", (0, 0))


def test_a_stop_reaches_the_workers_though_the_disk_is_full(home: Path) -> None:
    launcher = scripted(home, "boundary")
    launcher.start(order())
    wait_until_ready(launcher)
    SteadyClock(home)()  # which a host reads, and writes down, long before its disk is full
    with full_disk():
        launcher.stop(7, grace_seconds=20)
    report = wait_until_dead(launcher).exit
    assert (report.kind, report.exit_codes) == ("boundary", (0, 0))


def test_a_stop_is_firm_after_the_grace(home: Path) -> None:
    launcher = scripted(home, "boundary,stubborn")
    launcher.start(order())
    wait_until_ready(launcher)
    launcher.stop(7, grace_seconds=0.5)
    report = wait_until_dead(launcher, seconds=5).exit
    assert report is not None
    assert (report.kind, report.exit_codes) == ("stopped", (0, -9))
    assert "rank 1 did not end within 0.5 s" in report.error
    assert processes(launcher) == []


def test_a_later_stop_may_shorten_the_grace(home: Path) -> None:
    launcher = scripted(home, "stubborn")
    launcher.start(order())
    wait_until_ready(launcher)
    launcher.stop(7, grace_seconds=60)
    launcher.stop(7, grace_seconds=0)
    assert wait_until_dead(launcher, seconds=5)


def test_an_agent_killed_with_9_takes_its_workers_along_and_is_shown_dead(home: Path) -> None:
    launcher = scripted(home, "stubborn,parent")
    launcher.start(order())
    workers = wait_until_ready(launcher)
    wait_for(lambda: len(processes(launcher)) == 3)  # the grandchild, too, has come to its own environment
    os.kill(agent_of(launcher).pid, signal.SIGKILL)
    assert wait_for(lambda: not any(worker.alive() for worker in workers)) < 1.0
    wait_for(lambda: not launcher.groups()[0].alive)  # which ends the grandchild, too
    assert processes(launcher) == []
    report = launcher.poll(7).exit
    assert report is not None
    assert report.kind == "infrastructure"
    assert "agent (pid" in report.error


def test_an_agent_that_hangs_past_the_grace_is_killed_by_the_next_stop(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_core.launch.folders.STUCK_SECONDS", 0.0)
    launcher = scripted(home, "stubborn")
    launcher.start(order())
    wait_until_ready(launcher)
    os.kill(agent_of(launcher).pid, signal.SIGSTOP)
    launcher.stop(7, grace_seconds=0)
    launcher.stop(7, grace_seconds=0)
    wait_until_dead(launcher, seconds=5)
    assert processes(launcher) == []


def with_grace(launcher: LocalLauncher, seconds: float) -> LocalLauncher:
    return LocalLauncher(launcher.settings.model_copy(update={"grace_seconds": seconds}), launcher.worker_command)


@pytest.mark.nightly
def test_a_worker_that_stays_stopped_past_the_grace_is_killed_and_the_report_says_so(home: Path) -> None:
    launcher = with_grace(scripted(home, "sleep"), 1.0)
    launcher.start(order())
    workers = wait_until_ready(launcher)
    workers[1].send(signal.SIGSTOP)
    report = wait_until_dead(launcher, seconds=60).exit
    assert report is not None
    assert report.kind == "infrastructure"
    assert f"rank 1 (pid {workers[1].pid}) was stopped by a signal" in report.error
    assert processes(launcher) == []


def test_the_grace_of_a_stopped_worker_begins_anew_when_it_has_gone_on(tmp_path: Path) -> None:
    plan = SpawnPlan(argv=(), env={}, cwd="/", grace_seconds=30.0, cpu_slots=())
    group = Group(RunDir(tmp_path), plan)
    with subprocess.Popen(["sleep", "600"]) as child:
        worker = ProcessId.of(child.pid)
        assert worker is not None
        group.pids, group.processes = {worker.pid: 0}, {0: worker}
        for begin in (0.0, 40.0):
            worker.send(signal.SIGSTOP)
            wait_for(worker.stopped)
            group.end_stopped(begin)
            group.end_stopped(begin + 29.0)
            worker.send(signal.SIGCONT)
            wait_for(lambda: not worker.stopped())
            group.end_stopped(begin + 39.0)
        assert worker.alive()
        assert group.outcome.failure == ""
        worker.send(signal.SIGSTOP)
        wait_for(worker.stopped)
        group.end_stopped(80.0)
        group.end_stopped(110.0)
        assert child.wait() == -signal.SIGKILL
        assert group.outcome.failure == f"rank 0 (pid {worker.pid}) was stopped by a signal for 30 s, and is killed"


@pytest.mark.parametrize("behaviour", ["parent", "daemon"])
def test_no_grandchild_is_left_when_the_group_ends(home: Path, behaviour: str) -> None:
    launcher = scripted(home, f"{behaviour},sleep")
    launcher.start(order())
    workers = wait_until_ready(launcher)
    strays = [pid for pid in children(agent_of(launcher).pid) if pid not in {worker.pid for worker in workers}]
    assert len(strays) == 1  # the agent is its parent now
    stray = ProcessId.of(strays[0])
    launcher.stop(7, grace_seconds=10)
    wait_until_dead(launcher)
    assert stray is not None
    assert not stray.alive()


def test_workers_end_when_the_run_dir_vanishes(home: Path) -> None:
    launcher = scripted(home, "stubborn")
    launcher.start(order())
    workers, agent = wait_until_ready(launcher), agent_of(launcher)
    shutil.rmtree(RunDir.of(home, 7).path)
    wait_for(lambda: not any(process.alive() for process in (*workers, agent)), 10)
    assert launcher.poll(7) is None


@pytest.mark.parametrize(("name", "text"), [("wanted.json", '{"request": 1}'), ("order.json", "{")])
def test_an_agent_that_meets_a_broken_file_ends_its_workers_and_names_it(home: Path, name: str, text: str) -> None:
    launcher = scripted(home, "stubborn")
    launcher.start(order())
    wait_until_ready(launcher)
    folder = RunDir.of(home, 7)
    (folder.path / name).write_text(text)
    wait_for(folder.exit_report)
    report = folder.exit_report()
    assert report is not None
    assert report.kind == "infrastructure"
    assert f"run/7/{name}" in report.error
    assert processes(launcher) == []


def test_a_pid_that_belongs_to_somebody_else_now_is_not_our_group(home: Path) -> None:
    launcher = scripted(home, "exit:0")
    launcher.start(order())
    wait_until_dead(launcher)
    folder = RunDir.of(home, 7)
    (folder.path / EXIT).unlink()
    somebody = subprocess.Popen(["sleep", "600"])
    folder.write(AgentProcess(somebody.pid, 1))  # as if it had got the agent's pid
    try:
        launcher.stop(7, grace_seconds=0)
        assert not launcher.poll(7).alive
        assert somebody.poll() is None
    finally:
        somebody.kill()
        somebody.wait()
        launcher.forget(7)  # the real agent, which still tries to tell the ledger, ends


def test_a_forgotten_group_keeps_its_logs_and_never_starts_again(home: Path) -> None:
    launcher = scripted(home, "exit:0")
    launcher.start(order())
    wait_until_dead(launcher)
    agent = agent_of(launcher)  # still tries to tell the ledger
    launcher.forget(7)
    assert launcher.poll(7) is None
    assert launcher.groups() == []
    wait_for(lambda: not agent.alive())
    assert TOKEN not in "".join(path.read_text() for path in RunDir.of(home, 7).path.rglob("*") if path.is_file())
    assert "does exit" in RunDir.of(home, 7).log(0).read_text()
    with pytest.raises(InfrastructureError, match="ended long ago"):
        launcher.start(order())


def test_workers_find_the_token_of_their_agent_nowhere(home: Path) -> None:
    launcher = scripted(home, "sleep")
    launcher.start(order())
    group = [agent_of(launcher), *wait_until_ready(launcher)]
    seen = {path: path.read_bytes() for path in RunDir.of(home, 7).path.rglob("*") if path.is_file()}
    for process in group:
        own = Path(f"/proc/{process.pid}")
        seen |= {own / name: (own / name).read_bytes() for name in ("environ", "cmdline")}
        assert os.readlink(own / "fd" / "0") == os.devnull
    seen |= {Path(f"/proc/{worker.pid}/mem"): memory_of(worker) for worker in group[1:]}
    assert TOKEN.encode() in seen[RunDir.of(home, 7).path / "order.json"]
    assert not [path for path, content in seen.items() if AGENT_TOKEN.encode() in content]


def test_a_live_group_is_not_forgotten(home: Path) -> None:
    launcher = scripted(home, "sleep")
    launcher.start(order())
    launcher.forget(7)
    assert launcher.poll(7).alive


@pytest.mark.parametrize("store", ["", "s3://bucket/prefix"])
def test_no_secret_reaches_environments_or_logs(home: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    secrets = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://u:hidden-1@h/a",
        "AIRFLOW_CONN_ELASTIC": "http://u:hidden-2@h",
        "ELASTIC_LEDGER_URL": "postgresql://u:hidden-3@h/l",
        "AWS_SECRET_ACCESS_KEY": "hidden-4",
        "SOME_API_KEY": "hidden-5",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    launcher = LocalLauncher(
        settings(home).model_copy(update={"ledger_url": "postgresql://u:hidden-6@h/l", "store": store}),
        worker_command=(sys.executable, "-S", str(SCRIPT), "sleep"),
    )
    launcher.start(order())
    seen = [Path(f"/proc/{process.pid}/environ").read_text() for process in wait_until_ready(launcher)]
    seen.append(Path(f"/proc/{agent_of(launcher).pid}/environ").read_text())
    broker = RunDir(access_brokers.folder_of(launcher.settings)).read(AccessBrokerProcess)
    assert (broker is not None) == bool(store)
    if broker is not None:
        seen.append(Path(f"/proc/{broker.pid}/environ").read_text())
        access_brokers.stop(launcher.settings)
    folder = RunDir.of(home, 7)
    seen += [path.read_text() for path in folder.path.rglob("*") if path.is_file() and path.name != "order.json"]
    assert not [text for text in seen if "hidden" in text or TOKEN in text]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.path.glob("*.json"))
    assert folder.path.stat().st_mode & 0o077 == 0


def test_a_rank_0_whose_native_code_keeps_the_interpreters_lock_does_not_outlive_its_lease(
    home: Path, tmp_path: Path
) -> None:
    """Its own watch over the lease does not run, and on a node that is cut off nobody else is there to stop it."""
    FolderLedger(tmp_path / "ledger").set(lease_seconds=4.0)
    worker = (sys.executable, "-m", "tests.launch.stuck_worker", str(tmp_path / "ledger"))
    launcher = LocalLauncher(settings(home), worker_command=worker)
    launcher.start(replace(order(num_slots=1), lease_seconds=4.0))
    (worker_process,) = wait_until_ready(launcher, 1)
    report = wait_until_dead(launcher, seconds=60).exit
    assert report is not None
    assert f"rank 0 (pid {worker_process.pid}) has not ended with it" in report.error
    assert report.exit_codes == (-signal.SIGKILL,)


def test_a_rank_0_that_outlives_its_lease_is_ended_by_its_agent_with_the_others(home: Path) -> None:
    launcher = scripted(home, "lease:1,sleep")
    launcher.start(order())
    workers, began = wait_until_ready(launcher), time.monotonic()
    report = wait_until_dead(launcher, seconds=30).exit
    assert time.monotonic() - began > LEASE_MARGIN, "its own watch has the time to be the first"
    assert not any(worker.alive() for worker in workers)
    assert report is not None
    assert report.kind == "infrastructure"
    assert re.fullmatch(
        rf"the lease ended [0-9]+ s ago, and rank 0 \(pid {workers[0].pid}\) has not ended with it", report.error
    )


def test_who_has_been_rank_0_and_is_not_any_more_is_not_ended_for_an_old_lease(home: Path) -> None:
    launcher = scripted(home, "sleep,lease:-100")
    launcher.start(order())
    workers = wait_until_ready(launcher)
    time.sleep(LEASE_MARGIN + 2.0)
    assert all(worker.alive() for worker in workers)


def test_a_group_that_is_stopped_while_it_is_started_starts_no_worker(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = scripted(home, "sleep")
    monkeypatch.setattr(pinned_code, "fetch", lambda *_: launcher.stop(7, grace_seconds=20))
    launcher.start(order())
    report = wait_until_dead(launcher).exit
    assert (report.kind, report.error, report.exit_codes) == ("stopped", "it was stopped before it had begun", ())
    assert not list((RunDir.of(home, 7).path / "logs").glob("rank*"))
