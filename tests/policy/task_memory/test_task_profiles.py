"""What a task's measured jobs say of those that were not measured yet."""

from __future__ import annotations

from dataclasses import replace

from elastic_core.policy.task_memory.task_profiles import TaskProfiles
from tests.policy.builders import job, limits, measured, point


def test_a_job_is_told_the_speeds_of_its_tasks_jobs_under_its_own_exchange_only() -> None:
    under_bytegrad = limits(comm="bytegrad")
    fast = measured(job("fast", lim=under_bytegrad), *(replace(point(n, 64, 0.1 / n), comm="bytegrad") for n in (1, 2)))
    profiles = TaskProfiles.of({}, [replace(fast, task="t")])
    told = TaskProfiles.of({"kin": profiles.to_state()}, [])
    assert told.fill_in(job("new", lim=under_bytegrad, task="t")).throughput == fast.throughput
    assert told.fill_in(job("exact", task="t")).throughput is None


def test_nor_those_of_jobs_with_another_interval_or_other_stages() -> None:
    often, seldom = limits(comm="local_sgd"), limits(comm="local_sgd", comm_options="interval=10000")
    fast = measured(job("fast", lim=seldom), *(replace(point(n, 64, 0.1 / n), comm="local_sgd") for n in (1, 2)))
    profiles = TaskProfiles.of({}, [replace(fast, task="t")])
    assert profiles.fill_in(job("new", lim=seldom, task="t")).throughput == fast.throughput
    assert profiles.fill_in(job("new", lim=often, task="t")).throughput is None
