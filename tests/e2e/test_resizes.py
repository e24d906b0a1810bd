"""Real jobs are resized while they live, on the real services: nothing is read from the store, as little moves as can,
whatever the layout, whoever was rank 0, and whoever asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from elastic_core.protocol.records import SegmentStatus
from elastic_core.spec import ClusterSpec, JobSpec
from elastic_core.state.format.manifest import read_manifest
from elastic_core.state.stores.store_urls import open_store
from tests.e2e.platform import CLUSTER, Platform, eventually
from tests.e2e.test_main_line import LINE, job_of, start, trains
from tests.state.moving import assert_moved_least

BYTES = "tests.e2e.tasks_for_tests:SlowBytes"
SHARED_BYTES = "tests.e2e.tasks_for_tests:SharedBytes"
SMALL = {"width": 32, "depth": 2, "heads": 4, "context": 16, "train_bytes": 20_000, "milliseconds": 20}
IN_SIXTHS = {**SMALL, "width": 36, "heads": 6}
POOL = {"a": 1, "b": 2}  # a job on all of it that gives up a slot keeps node b


@pytest.fixture
def pool(platform: Platform, request: pytest.FixtureRequest) -> Iterator[None]:
    def set_nodes(nodes: Any) -> None:
        platform.control.set_cluster(ClusterSpec.model_validate({"nodes": nodes}))

    eventually(lambda: not platform.control.jobs(active_only=True), 120, "no job is left of other tests")
    wanted = getattr(request, "param", POOL)
    set_nodes([{"name": name, "type": "cpu", "slots": slots} for name, slots in wanted.items()])
    yield
    set_nodes(CLUSTER["nodes"])


def a_long_job(name: str, slots: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "work": {"samples": 10_000_000},
        "batch": {"min": 32, "max": 32},
        "slots": slots,
        "segment": {"seconds": 3600},
        "checkpoints": {"interval_seconds": None, "interval_steps": 5},
        **more,
    }


def hold(platform: Platform, victim: str, slots: int) -> str:
    """Slots that somebody more important takes; the job that holds them."""
    holder = f"{victim}-gives"
    spec = a_long_job("holder", {"min": slots, "max": slots}, entry_point=LINE, priority=90)
    platform.hold_slots(holder, JobSpec.model_validate(spec))
    return holder


def end(platform: Platform, job_id: str) -> None:
    eventually(lambda: job_of(platform, job_id), 60, f"{job_id} is submitted")
    platform.control.cancel(job_id, "the test is over")


def resized(platform: Platform, job_id: str, slots: int) -> tuple[SegmentStatus, dict[str, float]]:
    """The segment on so many slots, once it has a checkpoint of its own; what that tells of how it got its state."""

    def saved() -> SegmentStatus | None:
        segment = trains(platform, job_id, slots)
        if segment is None:
            return None
        newest = max(platform.control.checkpoints(job_id), key=lambda saved: saved.checkpoint_id, default=None)
        return segment if newest is not None and newest.segment_id == segment.segment_id else None

    segment: SegmentStatus = eventually(saved, 120, f"{job_id} trains on {slots} slots and saves")
    return segment, dict(platform.control.job(job_id).last_restore)


def assert_least_moved(
    platform: Platform, before: SegmentStatus, after: SegmentStatus, taken: dict[str, float]
) -> None:
    """In the same processes, no byte from the store, and between ranks the least that any map of the ranks can do."""
    assert (after.handed_over, after.attempt) == (True, 0)
    assert before.allocation is not None
    assert after.allocation is not None
    store = open_store(platform.settings.store_url())
    saved_in_order = sorted(platform.control.checkpoints(after.job_id), key=lambda saved: saved.checkpoint_id)
    newest = {saved.segment_id: saved for saved in saved_in_order}
    old, new = (read_manifest(store, newest[segment.segment_id].uri) for segment in (before, after))
    assert_moved_least(old, before.allocation.slots, new, after.allocation.slots, taken)


def test_shrunk_grown_without_rank_0_and_at_a_users_word_a_job_keeps_its_processes(
    platform: Platform, pool: None
) -> None:
    start(platform, a_long_job("lives-on", {"min": 1, "max": 3}, entry_point=LINE,
                               params={"samples": 400, "milliseconds": 10}))  # fmt: skip
    try:
        whole, _ = resized(platform, "lives-on", 3)
        assert whole.allocation is not None
        first = whole.allocation.slots[0]
        holder = hold(
            platform, "lives-on", 1 if first.node == "a" else 2
        )  # such that the node is kept that rank 0 is not on
        shrunk, taken = resized(platform, "lives-on", 2 if first.node == "a" else 1)
        assert shrunk.allocation is not None
        assert first not in shrunk.allocation.slots
        assert_least_moved(platform, whole, shrunk, taken)

        platform.give_back_slots(holder)
        grown, taken = resized(platform, "lives-on", 3)
        assert_least_moved(platform, shrunk, grown, taken)

        platform.control.revoke(grown.segment_id, "somebody asks")
        eventually(lambda: platform.control.job("lives-on").segment_id != grown.segment_id, 60, "the segment ends")
        asked, _ = resized(platform, "lives-on", 3)
        assert (asked.handed_over, asked.attempt, asked.allocation) == (True, 0, grown.allocation)
        assert platform.control.segment(grown.segment_id).end_reason == "somebody asks"
        chain = [segment for segment in platform.control.segments("lives-on") if segment.granted_at]
        assert [segment.handed_over for segment in chain] == [False] + [True] * (len(chain) - 1)
    finally:
        end(platform, "lives-on")


@pytest.mark.parametrize(
    ("layouts", "task", "pool", "whole", "less"),
    [
        pytest.param({"tensor": [2]}, (BYTES, SMALL), {"a": 4}, 4, 2, id="tensor"),
        pytest.param({"sharded": "always"}, (BYTES, SMALL), {"a": 3}, 3, 2, id="sharded", marks=pytest.mark.nightly),
        pytest.param({"pipeline": [2]}, (BYTES, SMALL), {"a": 4}, 4, 2, id="pipeline", marks=pytest.mark.nightly),
        pytest.param(
            {"tensor": [2, 3]},
            (SHARED_BYTES, IN_SIXTHS),
            {"a": 3},
            3,
            2,
            id="another tensor size",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            {"tensor": [2], "sharded": "always"},
            (BYTES, SMALL),
            {"a": 4},
            4,
            2,
            id="shards of tensor-parallel ranks",
            marks=pytest.mark.nightly,
        ),
    ],
    indirect=["pool"],
)
def test_a_model_that_is_split_takes_its_new_parts_from_its_old_ones(
    platform: Platform, pool: None, layouts: dict[str, Any], task: tuple[str, dict[str, Any]], whole: int, less: int
) -> None:
    name = f"split-{'-'.join(layouts)}-{whole}"
    slots = {"allowed": [less, whole]}
    start(platform, a_long_job(name, slots, entry_point=task[0], params=task[1], layouts=layouts))
    try:
        before, taken = resized(platform, name, whole)
        first = platform.control.segments(name)[0]
        if first.segment_id != before.segment_id:  # a job that nobody has seen run may begin with less
            assert_least_moved(platform, first, before, taken)
        holder = hold(platform, name, whole - less)
        shrunk, taken = resized(platform, name, less)
        assert_least_moved(platform, before, shrunk, taken)
        platform.give_back_slots(holder)
    finally:
        end(platform, name)
