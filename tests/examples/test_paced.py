"""Paced jobs: a step lasts what the profile says of its type, batch and nodes, whatever the process itself took."""

from __future__ import annotations

import json
import statistics
from math import log
from pathlib import Path

import pytest

from elastic_core.domain import Allocation, Layout, Slot
from elastic_core.errors import UserError
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.sim.workloads.generated_jobs import KINDS
from elastic_core.spec import JobSpec
from elastic_core.spec.entry_points import load
from elastic_core.train.data.audit import prove
from elastic_core.train.entry import job_facts
from elastic_core.train.process.worker import main
from examples import paced
from tests.train.ledger import FolderLedger, make_order

ROOT = Path(__file__).parents[2]


class Clock:
    """Time that passes only where somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def allocation(*places: tuple[str, str]) -> Allocation:
    """Slots by (node, type)."""
    slots = tuple(Slot(node, index, kind) for index, (node, kind) in enumerate(places))
    return Allocation(slots=slots, global_batch=64, layout=Layout(data=len(slots)))


def step(pace: paced.Pace, clock: Clock, samples: int, own: float, micro_batches: int = 1) -> float:
    """Seconds of one step in which this process itself works `own` seconds at reading and as many at the backward."""
    began = clock.now
    for number in range(micro_batches):
        clock.now += own
        pace.begin()
        pace.wait(samples, completes_step=number == micro_batches - 1)
        clock.now += own
        if number == micro_batches - 1:
            pace.linger()
        pace.stepped()
    return clock.now - began


def settled(slots: Allocation, rank: int, samples: int, own: float = 0.0, micro_batches: int = 1) -> float:
    clock = Clock()
    pace = paced.Pace(TRUTH, slots, rank, clock, clock.sleep)
    return [step(pace, clock, samples, own, micro_batches) for _ in range(3)][-1]


TRUTH = paced.physics("balanced", paced.PacedParams())


@pytest.mark.parametrize("kind", ["t4", "rtx", "a100"])
def test_a_step_on_one_slot_lasts_what_its_type_takes(kind):
    seconds, _ = TRUTH.seconds(kind, (1,), 32, 1)
    assert settled(allocation(("n0", kind)), 0, 32) == pytest.approx(seconds)


def test_a_type_that_no_profile_knows_is_as_fast_as_the_reference():
    assert settled(allocation(("n0", "cpu")), 0, 32) == pytest.approx(TRUTH.seconds("t4", (1,), 32, 1)[0])


def test_what_the_process_takes_itself_is_part_of_the_step():
    seconds, _ = TRUTH.seconds("t4", (1,), 32, 1)
    assert settled(allocation(("n0", "t4")), 0, 32, own=0.02) == pytest.approx(seconds)


@pytest.mark.parametrize("own", [0.0, 0.001])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_every_rank_waits_for_the_exchange_on_the_link(rank, own):
    slots, clock = allocation(("n0", "t4"), ("n0", "t4"), ("n1", "t4")), Clock()
    seconds, exchange = TRUTH.seconds("t4", (2, 1), 16, 1)
    pace = paced.Pace(TRUTH, slots, rank, clock, clock.sleep)
    for _ in range(3):
        assert step(pace, clock, 16, own) <= seconds + 2 * own
    clock.now += own
    pace.begin()
    pace.wait(16, completes_step=True)
    before = clock.now
    pace.linger()
    assert exchange > 2 * own
    assert clock.now - before == pytest.approx(exchange - 2 * own)
    assert settled(slots, rank, 16, own) == pytest.approx(seconds)


def test_gradients_are_exchanged_once_however_many_micro_batches_a_step_has():
    slots = allocation(("n0", "t4"), ("n0", "t4"))
    seconds, exchange = TRUTH.seconds("t4", (2,), 16, 4)
    assert settled(slots, 1, 16, micro_batches=4) == pytest.approx(seconds)
    assert seconds == pytest.approx(4 * (seconds - exchange) / 4 + exchange)


def test_a_slow_process_is_not_slowed_further():
    seconds, _ = TRUTH.seconds("a100", (1,), 16, 1)
    assert settled(allocation(("n0", "a100")), 0, 16, own=seconds) == pytest.approx(2 * seconds)


def test_a_larger_model_has_longer_steps_and_a_slower_one_only_longer_computing():
    whole, exchange = TRUTH.seconds("t4", (4,), 32, 1)
    large = paced.physics("balanced", paced.PacedParams(size=4.0)).seconds("t4", (4,), 32, 1)
    slow = paced.physics("balanced", paced.PacedParams(compute=2.0)).seconds("t4", (4,), 32, 1)
    assert large == pytest.approx((4 * whole, 4 * exchange))
    assert slow == pytest.approx((2 * (whole - exchange) + exchange, exchange))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_an_entry_point_of_its_own(kind):
    spec = a_spec(entry_point=paced.entry_point(kind), params={"samples": 128})
    facts = job_facts(load(spec.entry_point, "examples.*"), spec)
    assert (facts.dataset_samples, facts.metric) == (128, "held_out_loss")


def test_parameters_that_it_does_not_have_are_refused():
    spec = a_spec(params={"speed": 2})
    with pytest.raises(UserError, match="It takes: size, compute, samples, width, learning_rate"):
        job_facts(load(spec.entry_point, "examples.*"), spec)


def a_spec(**more: object) -> JobSpec:
    content = {
        "name": "paced", "entry_point": paced.entry_point("compute-bound"), "work": {"epochs": 3},
        "batch": {"min": 32, "max": 64}, "slots": {"min": 1, "max": 2},
        "params": {"size": 0.05, "samples": 256}, **more,
    }  # fmt: skip
    return JobSpec.model_validate(content)


def test_a_real_worker_keeps_the_pace_of_its_slots_type_learns_and_reads_each_sample_once_an_epoch(tmp_path):
    spec, ledger = a_spec(), FolderLedger(tmp_path / "ledger")
    order = make_order(spec, slots=1, batch=32, epoch=1, total=3 * 256, dataset=256, records=ledger.records())
    assert work(tmp_path, order) == 0
    observations, commits = ledger.observations(), ledger.commits()
    assert observations[-1].loss < 0.9 * log(256), "better than guessing a byte"
    least, _ = paced.physics("compute-bound", paced.PacedParams(size=0.05)).seconds("cpu", (1,), 32, 1)
    assert statistics.median(seen.step_seconds for seen in observations) > 0.9 * least
    assert [verdict.proven for verdict in prove([commit.fingerprints for commit in commits], 256)] == [True] * 3


def work(folder: Path, order: LaunchOrder) -> int:
    run_dir = RunDir(folder / "run" / str(order.epoch))
    run_dir.create()
    run_dir.write_order(order)
    run_dir.write_json("settings.json", {"project": str(ROOT), "store": str(folder / "store"), "tasks": "examples.*"})
    FolderLedger(folder / "ledger").set(epoch=order.epoch, order=json.loads((run_dir.path / "order.json").read_text()))
    return main(
        ["--run-dir", str(run_dir.path), "--rank", "0"], connect=lambda token: FolderLedger(folder / "ledger", token)
    )
