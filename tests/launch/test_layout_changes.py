"""From any layout of up to four slots to any other while the job lives: real ledger, real API, real agents, real
training. No process is replaced that need not be, nothing is read from the store, and all goes on as after a restart
from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from elastic_core.domain import Layout, Plan, Snapshot, Target
from elastic_core.policy import registry
from elastic_core.policy.base.policy import Law
from elastic_core.protocol.events import EventKind
from elastic_core.protocol.records import CheckpointRecord, SegmentStatus
from elastic_core.spec import JobSpec
from elastic_core.state.format.checkpoint_format import read_manifest
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.layout import of_one_rank
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.entry import job_facts
from tests.launch.airflowless import ApiThread, Platform, platform
from tests.state.moving import assert_moved_least
from tests.train import forked, tasks
from tests.train.conftest import new_job
from tests.train.job import Job
from tests.train.ledger import make_order

__all__ = ["new_job"]

pytestmark = pytest.mark.e2e

JOB, BATCH = "job", 12
SMALL = {"width": 16, "depth": 2, "heads": 4, "context": 8, "train_bytes": 10_000, "learning_rate": 1e-2}
SIZES = (1, 2, 3, 4)
LAYOUTS = [
    Layout(data=data, tensor=tensor, pipeline=pipeline, sharded=sharded)
    for data, tensor, pipeline, sharded in product(SIZES, SIZES, SIZES, (False, True))
    if data * tensor * pipeline <= 4 and (data > 1 or not sharded)
]
SPEC = JobSpec.model_validate(
    {
        "name": JOB,
        "entry_point": "tests.train.tasks:UnmeasuredBytes",
        "params": SMALL,
        "work": {"samples": 12_000_000},  # it outlives the test
        "batch": {"min": BATCH, "max": BATCH},
        "slots": {"min": 1, "max": 4},
        "layouts": {"tensor": SIZES, "pipeline": SIZES, "sharded": "either"},
        "segment": {"seconds": 3600},
        "checkpoints": {"interval_seconds": None},
        "seed": 11,
    }
)
FACTS = job_facts(tasks.UnmeasuredBytes, SPEC)
OF_EACH_AXIS = [
    Layout(data=4),
    Layout(data=2, tensor=2),
    Layout(pipeline=4),
    Layout(data=2, sharded=True),
    Layout(tensor=3),
    Layout(data=2, pipeline=2, sharded=True),
    Layout(),
    Layout(tensor=2, pipeline=2),
]
"""A chain in which every axis, and products of two, come and go: at the same count of slots, at more and at fewer."""


@dataclass(frozen=True)
class InLayout:
    """Gives every job this layout. It is called after it: an operator who sets it has all jobs laid out anew."""

    layout: Layout
    laws: ClassVar[frozenset[Law]] = frozenset()

    @property
    def name(self) -> str:
        return str(self.layout)

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        counts = {"cpu": self.layout.world_size}
        target = Target(counts=counts, global_batch=BATCH, layout=self.layout, reason=f"as {self.layout}")
        return Plan(policy=self.name, targets={job.job_id: target for job in snapshot.jobs})


@dataclass(frozen=True)
class Stay:
    """What the job was in one layout: its segment, the checkpoint that it ended with, and what the first one told of
    how the layout's ranks got their state."""

    segment: SegmentStatus
    end: CheckpointRecord
    taken: Mapping[str, float]


@pytest.fixture
def running(preloaded_home: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    for layout in LAYOUTS:
        monkeypatch.setitem(registry._POLICIES, str(layout), partial(InLayout, layout))
    with platform(preloaded_home, ledger_url, num_slots=4) as found:
        yield found


def passes_through(running: Platform, chain: Sequence[Layout]) -> list[Stay]:
    """One job in each of the layouts in turn, for a step or more."""
    running.control.set_policy(str(chain[0]))
    running.control.submit(JOB, SPEC, FACTS)
    for number, layout in enumerate(chain):
        running.control.set_policy(str(layout))
        running.until(lambda: running.control.segments(JOB)[-1], partial(is_in, number, layout))
    running.control.revoke(running.control.job(JOB).segment_id, "that will do")
    running.until(lambda: running.control.segments(JOB), lambda segments: len(segments) == len(chain) + 1)
    running.control.cancel(JOB, "that will do")
    running.until(running.launcher.groups, lambda groups: not any(group.alive for group in groups))
    return stays(running)[: len(chain)]


def is_in(number: int, layout: Layout, last: SegmentStatus) -> bool:
    """The job's segment of this number is the last one, in this layout, and its processes have said so."""
    held = last.allocation.layout if last.allocation is not None else None
    return (last.index, held) == (number, layout) and last.lease_live and last.started_at is not None


def stays(running: Platform) -> list[Stay]:
    assert isinstance(running.api, ApiThread)
    told = {event.payload["checkpoint"]["checkpoint_id"]: event.payload["timings"]
            for event in running.api.events() if event.kind is EventKind.COMMITTED}  # fmt: skip
    saved = {record.segment_id: record for record in running.control.checkpoints(JOB)}
    return [
        Stay(segment, saved[segment.segment_id], told[saved[segment.segment_id].checkpoint_id])
        for segment in running.control.segments(JOB)
        if segment.segment_id in saved
    ]


def assert_in_place(running: Platform, before: Stay, after: Stay) -> None:
    """The same processes went on, and ranks exchanged what the new layout needs and no more."""
    assert (after.segment.handed_over, after.segment.attempt) == (True, 0), after.segment
    assert before.segment.allocation is not None
    assert after.segment.allocation is not None
    store = open_store(running.settings.store_url())
    old, new = (read_manifest(store, stay.end.uri) for stay in (before, after))
    assert_moved_least(
        old, before.segment.allocation.slots, new, after.segment.allocation.slots, after.taken,
        evenly=False,  # 4 heads and 2 blocks over 3 ranks
    )  # fmt: skip


def restarted(running: Platform, new_job: Callable[..., Job], before: Stay, after: Stay) -> str:
    """The checkpoint of new processes that start from the one layout's last and take the other's steps."""
    assert after.segment.allocation is not None
    layout = after.segment.allocation.layout
    job = new_job(f"from-{before.end.step}", store_url=running.settings.store_url())
    order = make_order(
        SPEC, slots=layout.world_size, batch=BATCH, layout=layout, records=(before.end,), total=SPEC.work.samples,
        dataset=FACTS.dataset_samples, segment_steps=after.end.step - before.end.step, job_id=JOB,
    )  # fmt: skip
    assert set(forked.join(job.start_order(order))) == {0}, job.logs()
    return job.ledger.commits()[-1].uri


def state(running: Platform, uri: str) -> dict[str, dict[Box, bytes]]:
    """Every tensor of the model and the optimizer, by the boxes that it was written in."""
    store = open_store(running.settings.store_url())
    manifest = read_manifest(store, uri)
    files = {name: store.get(f"{uri}/{name}") for name in manifest.files}
    return {
        name: {tile.box: files[tile.file][tile.offset : tile.offset + tile.length] for tile in tensor.tiles}
        for name, tensor in manifest.tensors.items()
        if not of_one_rank(name)
    }


def assert_every_change_in_place(running: Platform, new_job: Callable[..., Job], chain: Sequence[Layout]) -> None:
    for before, after in pairwise(passes_through(running, chain)):
        assert_in_place(running, before, after)
        assert state(running, after.end.uri) == state(running, restarted(running, new_job, before, after))


def test_there_are_18_layouts_of_up_to_4_slots() -> None:
    assert len(LAYOUTS) == 18


def test_a_job_changes_its_layout_in_its_processes_and_computes_what_a_restart_would(running, new_job) -> None:
    assert_every_change_in_place(running, new_job, OF_EACH_AXIS)


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("hub", LAYOUTS[:-1], ids=str)
def test_every_layout_becomes_every_other_and_back(running, new_job, hub: Layout) -> None:
    others = LAYOUTS[LAYOUTS.index(hub) + 1 :]
    chain = [layout for other in others for layout in (hub, other)]
    assert_every_change_in_place(running, new_job, [*chain, hub])
