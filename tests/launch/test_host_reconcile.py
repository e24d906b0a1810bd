"""A host's processes and store against a real ledger: what nobody owns goes, what somebody owns stays."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.control.transitions.removable import TURN_SECONDS, TURNS
from elastic_core.domain import JobState, SegmentState
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.rundir import RunDir
from elastic_core.launch.host_reconcile import (
    KEEP_SECONDS,
    LITTER_SECONDS,
    reconcile_host,
    sweep_store,
    sweep_store_in_time,
)
from elastic_core.launch.local import LocalLauncher
from elastic_core.protocol.events import EventKind
from elastic_core.protocol.process_groups import ExitReport, ProcessGroup, ReconcileAnswer
from elastic_core.protocol.service import PoolControl
from elastic_core.state.stores.litter import NotSwept
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.state.stores.store_urls import open_store
from tests.builders import FACTS, Life, a_cluster, a_commit, a_control, a_spec
from tests.launch.builders import agent_of, order, scripted, wait_until_dead, wait_until_ready


class Clock:
    """The real time, moved forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def control(ledger_url: str, home: Path, clock: Clock) -> Iterator[LedgerControl]:
    plane = a_control(ledger_url, home, clock)
    plane.set_cluster(a_cluster({"here": 2}))
    yield plane
    plane.close()


@pytest.fixture
def life(control: LedgerControl) -> Life:
    """A job that was submitted; the test plays its operator and its trainer."""
    control.submit("job", a_spec(slots=(2, 2), checkpoints={"keep_last": 1, "keep_best": 0}), FACTS)
    return Life(control, control.trainer, "job")


def started(launcher: LocalLauncher, life: Life) -> int:
    """The origin epoch of the job's group, whose workers run."""
    granted = life.start()
    launcher.start(granted)
    wait_until_ready(launcher, 2, granted.origin_epoch)
    return granted.origin_epoch


def test_a_group_with_a_lease_is_left_alone(home: Path, control: LedgerControl, life: Life) -> None:
    launcher = scripted(home, "sleep")
    epoch = started(launcher, life)
    answer = reconcile_host(control, launcher)
    assert (answer.stop, answer.actions) == ((), ())
    assert launcher.poll(epoch).alive
    assert not (RunDir.of(home, epoch).path / "stop.json").exists()


def test_a_group_that_nobody_owns_is_stopped(home: Path, control: LedgerControl) -> None:
    launcher = scripted(home, "sleep")
    launcher.start(order())
    wait_until_ready(launcher)
    assert reconcile_host(control, launcher).stop == (7,)
    assert wait_until_dead(launcher).exit.kind == "stopped"


def test_a_group_whose_agent_was_killed_frees_its_slots(home: Path, control: LedgerControl, life: Life) -> None:
    launcher = scripted(home, "sleep")
    epoch = started(launcher, life)
    os.kill(agent_of(launcher, epoch).pid, signal.SIGKILL)
    wait_until_dead(launcher, epoch)
    reconcile_host(control, launcher)
    segment = control.segment(life.segment_id())
    assert segment.attempt == 1
    assert segment.state is SegmentState.GRANTED  # at once, under a new epoch
    assert segment.epoch > epoch
    (ended,) = [event for event in control.feed.events(0) if event.kind is EventKind.SEGMENT_ENDED]
    assert ended.payload["reason"].startswith("infrastructure: the agent (pid")


def test_a_dead_group_is_forgotten_after_a_while(home: Path, control: LedgerControl) -> None:
    launcher = scripted(home, "exit:0")
    launcher.start(order())
    wait_until_dead(launcher)
    reconcile_host(control, launcher)
    assert len(launcher.groups()) == 1
    long_ago = time.time() - KEEP_SECONDS - 1
    os.utime(RunDir.of(home, 7).path / "exit.json", (long_ago, long_ago))
    reconcile_host(control, launcher)
    assert launcher.groups() == []


def test_a_report_that_is_refused_is_the_trouble_of_its_group_alone(home: Path, control: LedgerControl) -> None:
    launcher = scripted(home, "exit:0")
    launcher.start(order())
    wait_until_dead(launcher)

    class Refusing(PoolControl):
        def process_group_gone(self, origin_epoch: int, report: ExitReport) -> None:
            raise UserError(f"the report of {origin_epoch}, {report}, is refused")

        def reconcile(self, groups: Sequence[ProcessGroup], listed_at: float | None = None) -> ReconcileAnswer:
            return control.reconcile(groups, listed_at)

    assert reconcile_host(Refusing(), launcher).stop == ()


def test_checkpoints_given_up_and_old_litter_are_swept(
    home: Path, control: LedgerControl, life: Life, clock: Clock
) -> None:
    store = open_store(control.settings.store_url())
    granted = life.start()
    commits = [a_commit(granted, step) for step in (10, 20)]
    litter = f"job/lineage-{granted.lineage}/step-0000000015-epoch-0-dead"
    fresh = f"job/lineage-{granted.lineage}/step-0000000016-epoch-0-young"
    for uri in (*(commit.uri for commit in commits), litter, fresh):
        store.put(f"{uri}/rank0.safetensors", b"...")
        store.put(f"{uri}/manifest.json", b"{}")
    for uri in (commits[1].uri, litter):
        for path in Path(store.url, uri).iterdir():
            os.utime(path, (time.time() - LITTER_SECONDS - 1,) * 2)
    for commit in commits:
        control.trainer(granted.token).commit(commit)
    life.leave(granted, "infrastructure", "so that no live epoch speaks for what it has committed")
    clock.ahead = 300.0  # past the ledger's own grace
    sweep_store(control, store, reconcile_host(control, scripted(home, "sleep")))
    assert {uri: bool(list(store.list(uri))) for uri in (commits[0].uri, commits[1].uri, litter, fresh)} == {
        commits[0].uri: False,
        commits[1].uri: True,
        litter: False,
        fresh: True,
    }
    assert reconcile_host(control, scripted(home, "sleep")).removable_checkpoints == ()


def test_litter_that_was_young_when_its_job_ended_is_swept_within_a_day(
    home: Path, control: LedgerControl, life: Life, clock: Clock
) -> None:
    store = open_store(control.settings.store_url())
    granted = life.start()
    commit, litter = a_commit(granted, 10), f"job/lineage-{granted.lineage}/step-0000000015-epoch-0-dead"
    for uri in (commit.uri, litter):
        store.put(f"{uri}/rank0.safetensors", b"...")
    control.trainer(granted.token).commit(commit)
    control.cancel("job", "enough")
    life.leave(granted, "infrastructure", "it was asked to end")
    assert control.job("job").state is JobState.CANCELLED
    clock.ahead = LITTER_SECONDS
    for _ in range(TURNS):
        clock.ahead += TURN_SECONDS
        sweep_store(control, store, reconcile_host(control, scripted(home, "sleep"), clock), clock)
    assert [bool(list(store.list(uri))) for uri in (commit.uri, litter)] == [True, False]


def commit_and_leave(control: LedgerControl, life: Life, clock: Clock, steps: Sequence[int]) -> None:
    """Checkpoints, of which the ledger keeps the last alone: no live epoch speaks for the others."""
    granted = life.start()
    for step in steps:
        control.trainer(granted.token).commit(a_commit(granted, step))
    life.leave(granted, "infrastructure", "so that no live epoch speaks for what it has committed")
    clock.ahead = 300.0  # past the ledger's own grace


class Refusing(LocalStore):
    """Has one directory that cannot be deleted."""

    def delete(self, prefix: str) -> None:
        if "step-0000000010" in prefix:
            raise InfrastructureError(f"Cannot delete {prefix}: Operation not permitted.")
        super().delete(prefix)


def test_the_ledger_hears_of_what_was_swept_besides_what_could_not_be(
    home: Path, control: LedgerControl, life: Life, clock: Clock
) -> None:
    store = Refusing(Path(control.settings.store_url()))
    commit_and_leave(control, life, clock, (10, 20, 30))
    with pytest.raises(InfrastructureError, match=r"step-0000000010.* not permitted"):
        sweep_store(control, store, reconcile_host(control, scripted(home, "sleep")))
    (left,) = reconcile_host(control, scripted(home, "sleep")).removable_checkpoints
    assert left.step == 10


class Hanging(LocalStore):
    """Answers once it is let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.let_go = threading.Event()

    def delete(self, prefix: str) -> None:
        assert self.let_go.wait(60)
        super().delete(prefix)


def test_a_store_that_hangs_holds_reconciliation_up_for_so_long_and_what_it_did_is_told_later(
    home: Path, control: LedgerControl, life: Life, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_core.launch.host_reconcile.SWEEP_SECONDS", 0.3)
    store = Hanging(Path(control.settings.store_url()))
    commit_and_leave(control, life, clock, (10, 20))
    answer = reconcile_host(control, scripted(home, "sleep"))
    with pytest.raises(InfrastructureError, match=r"not ended within 0.3 s: the store, or the control API"):
        sweep_store_in_time(control, store, answer)
    assert control.reconcile([], clock()).removable_checkpoints == answer.removable_checkpoints
    store.let_go.set()
    for thread in threading.enumerate():
        if thread.name == "sweep-store":
            thread.join()
    monkeypatch.setattr("elastic_core.launch.host_reconcile.SWEEP_SECONDS", 50.0)
    sweep_store_in_time(control, store, answer)
    assert control.reconcile([], clock()).removable_checkpoints == ()


def test_what_a_sweep_raises_is_raised_to_whoever_waits_for_it_and_keeps_nothing_that_comes_after_it(
    home: Path, control: LedgerControl, life: Life, clock: Clock
) -> None:
    commit_and_leave(control, life, clock, (10, 20, 30))
    came_last = threading.Event()
    with pytest.raises(NotSwept, match=r"step-0000000010.* not permitted"):
        sweep_store_in_time(
            control,
            Refusing(Path(control.settings.store_url())),
            reconcile_host(control, scripted(home, "sleep")),
            came_last.set,
        )
    assert came_last.is_set()
