"""A job whose workers and servers are on slots of two types, by the default policy on the real services: decided,
measured, shown, given more by a larger pool, and done with every sample read once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from elastic_core.protocol.records import JobStatus
from elastic_core.spec import parse_cluster_spec
from tests.e2e.platform import CLUSTER, Platform, eventually
from tests.e2e.test_main_line import a_job, assert_read_exactly_once, finished, job_of, start, trains
from tests.e2e.test_user_actions import page

WORK, FAST = 2_400, "fast"


def pool(fast: int, processors: int) -> dict[str, Any]:
    return {"nodes": [{"name": "node-f", "type": FAST, "slots": fast}, {**CLUSTER["nodes"][0], "slots": processors}]}


@pytest.fixture
def one_of_each(platform: Platform) -> Iterator[None]:
    """A pool in which two processes are on two types, or nowhere."""
    eventually(lambda: not platform.control.jobs(active_only=True), 120, "no job is left of other tests")
    platform.control.set_cluster(parse_cluster_spec(pool(1, 1)))
    yield
    platform.control.set_cluster(parse_cluster_spec(CLUSTER))


def on(platform: Platform, counts: dict[str, int]) -> JobStatus | None:
    job = job_of(platform, "apart")
    if job is None or job.allocation is None or trains(platform, "apart") is None:
        return None
    return job if job.allocation.counts() == counts else None


@pytest.mark.nightly
@pytest.mark.usefixtures("one_of_each")
def test_workers_take_one_type_and_servers_processors_and_a_worker_more_where_there_is_room(
    platform: Platform,
) -> None:
    spec = a_job("apart", samples=WORK, slots=(2, 3)) | {
        "entry_point": "tests.e2e.tasks_for_tests:WideLine", "batch": {"min": 16, "max": 16},
        "params": {"samples": 400, "milliseconds": 20, "width": 256}, "sync": "parameter_server",
        "servers": {"min": 1, "max": 1},
    }  # fmt: skip
    start(platform, spec)
    first = eventually(lambda: on(platform, {FAST: 1, "cpu": 1}), 180, "it trains on a slot of each type")
    assert (first.allocation.layout.data, first.allocation.layout.servers) == (1, 1)
    assert [slot.type for slot in first.allocation.slots] == [FAST, "cpu"], "the server is the last rank"
    assert f"1 worker on {FAST} and 1 parameter server on cpu" in platform.elastic("jobs", "show", "apart").stdout
    row = next(job for job in page(platform)["jobs"] if job["job_id"] == "apart")
    assert "1 worker and 1 parameter server" in row["layout"]
    eventually(
        lambda: [p for view in platform.control.snapshot().jobs for p in view.profile if p.type == FAST], 60,
        "its steps are measured as those of workers on that type",
    )  # fmt: skip
    platform.control.set_cluster(parse_cluster_spec(pool(2, 1)))
    more = eventually(lambda: on(platform, {FAST: 2, "cpu": 1}), 180, "a second worker joins the first")
    assert (more.allocation.layout.data, more.allocation.layout.servers) == (2, 1)
    done = finished(platform, "apart", seconds=240)
    assert done.done_samples == WORK
    assert_read_exactly_once(platform, "apart")
