"""Jobs with parameter servers on the real services, under policies that decide workers and servers: trained, measured,
shown, resized, killed, and done with every sample read once. A job that may have either form changes it by what it has
measured."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any

import pytest

from elastic_core.host.messages import WorkerProcesses
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.records import JobStatus
from elastic_core.spec import parse_cluster_spec
from tests.e2e.platform import CLUSTER, PATIENCE, Platform, eventually
from tests.e2e.test_main_line import a_job, assert_read_exactly_once, finished, job_of, start, trains
from tests.e2e.test_resizes import end
from tests.e2e.test_user_actions import page

WORK = round(4_000 * PATIENCE)  # a busy machine slows the test down, not a task that sleeps
REPLICAS, SERVED = "data 4 x tensor 1 x pipeline 1", "2 workers and 2 parameter servers"  # on four slots


@pytest.fixture(params=["horizon", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("aiturbo", "optimus"))])
def policy(platform: Platform, request: pytest.FixtureRequest) -> Iterator[str]:
    """Decides on the whole pool."""
    eventually(lambda: not platform.control.jobs(active_only=True), 120, "no job is left of other tests")
    platform.elastic("policy", "set", request.param)
    yield request.param
    platform.control.set_cluster(parse_cluster_spec(CLUSTER))
    platform.elastic("policy", "reset")


def served(name: str, **more: Any) -> dict[str, Any]:
    return a_job(name, samples=WORK, slots=(2, 4), **more) | {
        "entry_point": "tests.e2e.tasks_for_tests:WideLine", "batch": {"min": 16, "max": 16},
        "params": {"samples": 400, "milliseconds": 10, "width": 256}, "sync": "parameter_server",
        "servers": {"min": 1, "max": 2},
    }  # fmt: skip


def on(platform: Platform, job_id: str, slots: int) -> JobStatus | None:
    job = job_of(platform, job_id)
    return job if job is not None and trains(platform, job_id, slots) is not None else None


def measured_with_servers(platform: Platform, job_id: str) -> bool:
    views = [view for view in platform.control.snapshot().jobs if view.job_id == job_id]
    return any(point.layout is not None and point.layout.servers for view in views for point in view.profile)


def kill_a_server(platform: Platform, job: JobStatus) -> None:
    """The process of the last rank, of whichever group trains the job now."""
    assert job.allocation is not None
    held = job.allocation.slots[-1]
    slot, group = f"{held.node}:{held.index}", platform.control.groups_of(job.job_id)[-1]
    recorded = RunDir.of(platform.home, group.origin_epoch).read(WorkerProcesses)
    assert recorded is not None
    os.kill(next(worker.process.pid for worker in recorded.workers if worker.slot == slot), signal.SIGKILL)


def test_workers_and_servers_are_decided_measured_shown_resized_and_survive_a_killed_server(
    platform: Platform, policy: str
) -> None:
    job_id = f"served-{policy}"
    start(platform, served(job_id))
    first = eventually(lambda: on(platform, job_id, 4) or on(platform, job_id, 2), 180, "the job trains")
    layout = first.allocation.layout
    assert layout.servers >= 1
    assert layout.world_size == first.allocation.num_slots
    eventually(lambda: measured_with_servers(platform, job_id), 90, "workers with servers are measured")
    assert platform.control.explain(job_id).policy == policy
    job = eventually(lambda: job_of(platform, job_id), 30, "the job is known")
    shown = next(row for row in page(platform)["jobs"] if row["job_id"] == job_id)
    told = json.loads(platform.elastic("jobs", "show", job_id, "--json").stdout)
    assert "parameter server" in shown["layout"]
    assert told["allocation"]["layout"]["servers"] >= 1
    assert "parameter server" in platform.elastic("jobs", "show", job_id).stdout

    platform.control.set_cluster(parse_cluster_spec({"nodes": CLUSTER["nodes"][:1]}))
    small = eventually(lambda: on(platform, job_id, 2), 180, "it goes on on the node that is left")
    assert (small.allocation.layout.data, small.allocation.layout.servers) == (1, 1)
    kill_a_server(platform, small)
    eventually(
        lambda: any(segment.attempt for segment in platform.control.segments(job_id)), 120, "an attempt was lost"
    )
    platform.control.set_cluster(parse_cluster_spec(CLUSTER))
    done = finished(platform, job_id, seconds=400)
    assert done.done_samples == job.total_samples == WORK
    assert_read_exactly_once(platform, job_id)


def either(name: str, slow_milliseconds: float) -> dict[str, Any]:
    """On four slots. As replicas all compute a quarter of the batch, and wait for a slow link; with two servers two
    compute half of it each, of which each sample beyond the fourth takes so long. What replicas measure of the link
    lets servers be tried."""
    return a_job(name, samples=WORK, slots=(4, 4), seconds=8.0) | {
        "entry_point": "tests.e2e.tasks_for_tests:SlowLinkLine", "batch": {"min": 16, "max": 16},
        "params": {"samples": 400, "milliseconds": 20, "width": 32, "link_milliseconds": 600, "fitting": 4,
                   "slow_milliseconds": slow_milliseconds},
        "sync": "either", "servers": {"min": 2, "max": 2},
    }  # fmt: skip


def forms(platform: Platform, job_id: str) -> list[int]:
    """Parameter servers that it was granted, once each time that they changed; 0: replicas."""
    granted = [segment.allocation for segment in platform.control.segments(job_id) if segment.allocation]
    return [count for count, _ in groupby(allocation.layout.servers for allocation in granted)]


def comparison(form: str, other: str) -> re.Pattern[str]:
    """Of a reason that compares what a step takes in this form and in the other, both measured."""
    return re.compile(rf"; as {form}: a step would take [\d.]+ times as long with {other}(?! \(never tried\))")


def compared(platform: Platform, job_id: str, form: str, other: str) -> bool:
    """A decision has left the job in this form, having measured a step in both."""
    job = job_of(platform, job_id)
    return job is not None and comparison(form, other).search(job.target_reason or "") is not None


def assert_told(platform: Platform, job_id: str, form: str, other: str) -> None:
    """The page and the command line say which form, and how much longer or shorter a step takes in the other."""
    shown = next(row for row in page(platform)["jobs"] if row["job_id"] == job_id)
    assert comparison(form, other).search(shown["reason"]), shown
    told = platform.elastic("jobs", "show", job_id).stdout
    assert comparison(form, other).search(" ".join(told.split())), told


@pytest.mark.nightly
def test_a_job_of_either_tries_servers_in_place_and_stays_with_them_where_a_step_is_measured_to_be_quicker(
    platform: Platform,
) -> None:
    """The policy is the default one."""
    eventually(lambda: not platform.control.jobs(active_only=True), 120, "no job is left of other tests")
    job_id = "either-served"
    start(platform, either(job_id, slow_milliseconds=20))
    eventually(
        lambda: compared(platform, job_id, SERVED, REPLICAS), 240, "both forms were measured, and it has servers"
    )
    assert platform.control.explain(job_id).policy == "horizon"
    assert_told(platform, job_id, SERVED, REPLICAS)
    assert finished(platform, job_id, seconds=400).done_samples == WORK
    assert forms(platform, job_id)[-2:] == [0, 2], "it may have begun with servers, by what other jobs had shown"
    granted = [segment for segment in platform.control.segments(job_id) if segment.allocation]
    (changed,) = [
        after
        for before, after in pairwise(granted)
        if before.allocation.layout.servers < after.allocation.layout.servers
    ]
    assert changed.handed_over, "in place"
    assert_read_exactly_once(platform, job_id)


@pytest.mark.nightly
def test_a_job_of_either_goes_back_to_replicas_where_servers_were_measured_to_be_slower(platform: Platform) -> None:
    eventually(lambda: not platform.control.jobs(active_only=True), 120, "no job is left of other tests")
    job_id = "either-replicas"
    start(platform, either(job_id, slow_milliseconds=300))
    eventually(
        lambda: compared(platform, job_id, REPLICAS, SERVED), 300, "both forms were measured, and it has replicas"
    )
    assert_told(platform, job_id, REPLICAS, SERVED)
    tried = len(platform.control.segments(job_id))
    eventually(lambda: len(platform.control.segments(job_id)) > tried + 2, 120, "it is decided about twice more")
    assert forms(platform, job_id)[-2:] == [2, 0]
    end(platform, job_id)
    eventually(lambda: not platform.control.jobs(active_only=True), 120, "it has ended")
    assert_read_exactly_once(platform, job_id)
