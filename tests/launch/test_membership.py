"""Workers that leave a group while it lives, and standby workers."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core.domain import Layout, Slot
from elastic_core.host.messages import ServingState, SlotId, StandbyRequest, WorkerProcesses
from elastic_core.host.process import ProcessId, marked
from elastic_core.host.rundir import RUN_DIR, RunDir
from elastic_core.launch.local import LocalLauncher
from elastic_core.launch.workers.worker_group import PEER_SECONDS
from tests.launch.builders import order, scripted, the_stray, wait_for, wait_until_dead, wait_until_ready, workers_of
from tests.launch.scripted_worker import SLEEP


def resize(folder: RunDir, *slots: int) -> None:
    """What rank 0 does once the lease has passed on: the order in force names other slots."""
    named = tuple(Slot("n0", index, "cpu") for index in slots)
    before = order()
    folder.write_order(
        replace(before, allocation=replace(before.allocation, slots=named, layout=Layout(data=len(named))))
    )


def want(folder: RunDir, *slots: int, request: int = 1) -> None:
    folder.write(StandbyRequest(request, tuple(SlotId("n0", index, "cpu") for index in slots)))


def slots_in_use(folder: RunDir) -> list[str]:
    return [worker.slot for worker in folder.require(WorkerProcesses).workers]


def started(launcher: LocalLauncher, num_slots: int = 2) -> tuple[RunDir, list[ProcessId]]:
    launcher.start(order(num_slots=num_slots))
    return RunDir.of(launcher.home, 7), wait_until_ready(launcher, num_slots)


def test_a_worker_that_leaves_ends_nobody_else_and_its_helpers_end_with_it(home: Path) -> None:
    launcher = scripted(home, "boundary,helper")
    folder, (first, second) = started(launcher)
    wait_for(lambda: len(marked(RUN_DIR, str(folder.path))) == 3)
    resize(folder, 0)
    second.send(signal.SIGUSR1)
    wait_for(lambda: slots_in_use(folder) == ["n0:0"])
    assert marked(RUN_DIR, str(folder.path)) == [first]  # so its slot can be had
    assert launcher.poll(7).alive
    launcher.stop(7, grace_seconds=20)
    report = wait_until_dead(launcher).exit
    assert (report.kind, report.exit_codes) == ("boundary", (0,))


def test_what_it_started_in_sessions_of_their_own_ends_before_its_slot_is_free(home: Path) -> None:
    launcher = scripted(home, "boundary,parent")
    folder, (first, second) = started(launcher)
    stray = the_stray(launcher, [first, second])
    resize(folder, 0)
    second.send(signal.SIGKILL)
    wait_for(lambda: slots_in_use(folder) == ["n0:0"])
    assert not stray.alive()
    assert first.alive()
    launcher.stop(7, grace_seconds=20)
    wait_until_dead(launcher)


def test_what_a_worker_that_stays_has_started_holds_no_slots_of_others(home: Path) -> None:
    launcher = scripted(home, "parent,boundary")
    folder, (first, second) = started(launcher)
    stray = the_stray(launcher, [first, second])
    resize(folder, 0)
    second.send(signal.SIGTERM)
    wait_for(lambda: slots_in_use(folder) == ["n0:0"])
    assert stray.alive()
    launcher.stop(7, grace_seconds=20)
    wait_until_dead(launcher)
    assert not stray.alive()


def test_while_there_is_a_process_of_nobody_knows_whom_slots_that_are_left_stay_held(home: Path) -> None:
    launcher = scripted(home, "boundary,daemon")
    folder, (first, second) = started(launcher)
    stray = the_stray(launcher, [first, second])
    wait_for(lambda: SLEEP.encode() in Path(f"/proc/{stray.pid}/cmdline").read_bytes())  # its environment is cleared
    resize(folder, 0)
    second.send(signal.SIGKILL)
    words = f"slots of workers that have ended stay held: it is not known whose processes {stray.pid} are"
    wait_for(lambda: words in folder.agent_log.read_text())
    time.sleep(1.5)  # longer than between two looks
    assert slots_in_use(folder) == ["n0:0", "n0:1"]
    stray.send(signal.SIGKILL)
    wait_for(lambda: slots_in_use(folder) == ["n0:0"])
    launcher.stop(7, grace_seconds=20)
    wait_until_dead(launcher)


def test_a_worker_that_leaves_is_no_death_even_if_it_fails_or_hangs(home: Path) -> None:
    launcher = scripted(home, "boundary,sleep,stubborn")
    folder, (_, second, third) = started(launcher, 3)
    resize(folder, 0)
    second.send(signal.SIGKILL)
    wait_for(lambda: not third.alive(), PEER_SECONDS + 15)
    wait_for(lambda: slots_in_use(folder) == ["n0:0"])
    launcher.stop(7, grace_seconds=20)
    report = wait_until_dead(launcher).exit
    assert (report.kind, report.exit_codes) == ("boundary", (0,))


@pytest.mark.nightly
def test_a_worker_from_which_the_group_still_takes_its_state_is_given_time(home: Path) -> None:
    launcher = scripted(home, "boundary,stubborn")
    folder, (_, second) = started(launcher)
    folder.write(ServingState(second.pid, second.start_time, "n0:1"), 1)
    resize(folder, 0)
    wait_for(lambda: "rank 1 (pid" in folder.agent_log.read_text(), PEER_SECONDS + 15)
    assert "has left the group, which still takes from it what it holds" in folder.agent_log.read_text()
    assert second.alive()
    launcher.stop(7, grace_seconds=0.1)
    wait_until_dead(launcher)
    assert not second.alive()


def started_standby(launcher: LocalLauncher, slot: int) -> tuple[RunDir, ProcessId]:
    """A group on slot 0, and a worker that waits for another slot."""
    folder, _ = started(launcher, 1)
    want(folder, slot)
    return folder, wait_until_ready(launcher, 2)[1]


@pytest.mark.nightly
def test_a_standby_worker_is_started_once_and_with_the_environment_of_its_slot(executing_home: Path) -> None:
    launcher = scripted(executing_home, "boundary")
    folder, worker = started_standby(launcher, 3)
    assert slots_in_use(folder) == ["n0:0", "n0:3"]
    environ = Path(f"/proc/{worker.pid}/environ").read_text()
    assert "LOCAL_RANK=3" in environ
    assert f"{RUN_DIR}={folder.path}" in environ
    assert "--slot\0n0:3" in Path(f"/proc/{worker.pid}/cmdline").read_text()
    want(folder, 3, request=2)
    want(folder, 3, 4, request=3)
    wait_for(lambda: slots_in_use(folder) == ["n0:0", "n0:3", "n0:4"])
    assert wait_until_ready(launcher, 3)[1] == worker
    launcher.stop(7, grace_seconds=20)
    report = wait_until_dead(launcher).exit
    assert (report.kind, report.exit_codes) == ("boundary", (0,))


def test_a_worker_that_dies_while_it_waits_costs_the_group_nothing(home: Path) -> None:
    launcher = scripted(home, "boundary")
    folder, worker = started_standby(launcher, 1)
    worker.send(signal.SIGKILL)
    wait_for(lambda: slots_in_use(folder) == ["n0:0"])
    assert launcher.poll(7).alive
    want(folder, 1, request=2)  # and another may be asked for
    wait_for(lambda: slots_in_use(folder) == ["n0:0", "n0:1"])
    launcher.stop(7, grace_seconds=20)
    assert wait_until_dead(launcher).exit.kind == "boundary"


def test_a_slot_without_a_device_gets_no_standby_worker_and_the_group_trains_on(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    launcher = scripted(home, "boundary")
    launcher.start(order(num_slots=1, slot_type="h200"))
    wait_until_ready(launcher, 1)
    folder = RunDir.of(launcher.home, 7)
    folder.write(StandbyRequest(1, tuple(SlotId("n0", index, "h200") for index in (2, 1))))
    wait_for(lambda: slots_in_use(folder) == ["n0:0", "n0:1"])
    words = "no standby worker can be started on n0:2: slot 2 of type 'h200' has no device here: CUDA_VISIBLE_DEVICES="
    assert words in folder.agent_log.read_text()
    wait_until_ready(launcher, 2)
    launcher.stop(7, grace_seconds=20)
    report = wait_until_dead(launcher).exit
    assert (report.kind, report.exit_codes) == ("boundary", (0,))


def test_a_group_with_a_slot_without_a_device_says_so_as_it_ends(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    launcher = scripted(home, "sleep")
    launcher.start(order(num_slots=2, slot_type="h200"))
    report = wait_until_dead(launcher).exit
    assert report.kind == "infrastructure"  # of the node: on another one the job can train
    assert "slot 1 of type 'h200' has no device here: CUDA_VISIBLE_DEVICES=0 shows 1. Give this node 1" in report.error
    assert not marked(RUN_DIR, str(RunDir.of(launcher.home, 7).path))


@pytest.mark.parametrize("first", ["it dies", "the order names it"])
def test_a_worker_that_the_order_names_belongs_to_the_group(home: Path, first: str) -> None:
    launcher = scripted(home, "boundary")
    folder, worker = started_standby(launcher, 1)
    if first == "it dies":
        worker.send(signal.SIGKILL)
        wait_for(lambda: slots_in_use(folder) == ["n0:0"])
    resize(folder, 0, 1)
    worker.send(signal.SIGKILL)
    report = wait_until_dead(launcher).exit
    assert (report.kind, report.exit_codes) == ("infrastructure", (-9, -9))
    assert report.error.startswith("rank 1 was killed by SIGKILL")


def test_who_still_waits_when_the_others_have_ended_is_ended_too(home: Path) -> None:
    launcher = scripted(home, "helper,stubborn")
    folder, worker = started_standby(launcher, 1)
    workers_of(folder)[0].send(signal.SIGUSR1)
    report = wait_until_dead(launcher).exit
    assert (report.kind, report.exit_codes) == ("boundary", (0,))
    assert not worker.alive()
