"""Setting the host's clock moves no lease: a healthy one is not fenced, and a hung job is not hidden."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.errors import Fenced
from elastic_core.host.steady_clock import BOOT_ID, FILE, SteadyClock
from elastic_core.protocol.process_groups import LaunchOrder, ProcessGroup
from tests.builders import FACTS, Life, a_beat, a_cluster, a_commit, a_control, a_spec

LEASE, HOUR = 90.0, 3600.0


@dataclass
class Host:
    """A host's two clocks."""

    wall: float = 1_800_000_000.0
    steady: float = 5_000.0

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def clock(self, folder: Path) -> SteadyClock:
        return SteadyClock(folder, lambda: self.wall, lambda: self.steady)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def control(ledger_url: str, tmp_path: Path, host: Host) -> Iterator[LedgerControl]:
    control = a_control(ledger_url, tmp_path, host.clock(tmp_path))
    control.set_cluster(a_cluster())
    control.submit("job-a", a_spec(), FACTS)
    host.pass_(10 * LEASE)  # long after the control plane started
    yield control
    control.close()


def group(order: LaunchOrder) -> ProcessGroup:
    return ProcessGroup(origin_epoch=order.origin_epoch, segment_id=order.segment_id, alive=True)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_lease_that_is_renewed_outlives_a_jump_of_the_clock(control: LedgerControl, host: Host, jump: float) -> None:
    order = Life(control, control.trainer, "job-a").start()
    for step in range(3):
        host.wall += jump
        host.pass_(LEASE / 2)
        assert control.reconcile([group(order)]).actions == ()
        control.trainer(order.token).heartbeat(a_beat(step))
    control.trainer(order.token).commit(a_commit(order, 4))


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_job_that_hangs_is_found_on_time_whatever_the_clock_is_set_to(
    control: LedgerControl, host: Host, jump: float
) -> None:
    order = Life(control, control.trainer, "job-a").start()
    host.wall += jump
    host.pass_(LEASE + 1)
    (action,) = control.reconcile([group(order)]).actions
    assert action == "job-a__seg_0: the lease of epoch 1 expired (no heartbeat for 91 s)"
    with pytest.raises(Fenced):
        control.trainer(order.token).commit(a_commit(order, 4))


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_control_plane_that_starts_after_the_jump_goes_by_the_same_time(
    control: LedgerControl, host: Host, jump: float, ledger_url: str, tmp_path: Path
) -> None:
    order = Life(control, control.trainer, "job-a").start()
    host.wall += jump
    second = a_control(ledger_url, tmp_path, host.clock(tmp_path))
    assert second.now() == control.now()
    host.pass_(LEASE - 1)
    assert second.reconcile([group(order)]).actions == ()
    host.pass_(2)
    assert len(second.reconcile([group(order)]).actions) == 1
    second.close()


def test_after_a_start_of_the_host_the_wall_clock_counts_again(host: Host, tmp_path: Path) -> None:
    before = host.clock(tmp_path)
    reading = json.loads((tmp_path / FILE).read_text())
    assert reading["boot_id"] == BOOT_ID.read_text().strip()
    (tmp_path / FILE).write_text(json.dumps(reading | {"boot_id": "of the start before"}))
    host.wall += HOUR
    assert host.clock(tmp_path)() == host.wall == before() + HOUR


@pytest.mark.parametrize("damaged", ["", "[]", "{}", '{"boot_id": 1}'])
def test_a_damaged_reading_is_taken_anew(host: Host, tmp_path: Path, damaged: str) -> None:
    (tmp_path / FILE).write_text(damaged)
    assert host.clock(tmp_path)() == host.wall


def test_a_hung_job_is_found_within_a_lease_life_after_a_start_with_the_clock_set_back(
    control: LedgerControl, host: Host, ledger_url: str, tmp_path: Path
) -> None:
    order = Life(control, control.trainer, "job-a").start()
    (tmp_path / FILE).unlink()
    host.wall -= HOUR
    started_anew = a_control(ledger_url, tmp_path, host.clock(tmp_path))
    assert started_anew.reconcile([group(order)]).actions == ()
    host.pass_(LEASE + 1)
    (action,) = started_anew.reconcile([group(order)]).actions
    assert action.endswith("(no heartbeat for 91 s)")
    started_anew.close()
