"""Pages of the list of jobs stand in the order of what is shown of each, whichever way it was found."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest

from elastic_core.control.job_list import JobsWanted
from elastic_core.control.plane import LedgerControl
from elastic_core.protocol.rest.answers import SortBy
from elastic_core.spec.inputs.sweeps import expand, parse_sweep
from elastic_core.spec.job_changes import JobChanges
from tests.builders import FACTS, FakeClock, Life, a_beat, a_commit, a_spec, an_observation

# Of a whole `JobStatus`: what a reader sees in the column.
SHOWN = {
    SortBy.SUBMITTED: lambda job: job.submitted_at,
    SortBy.FINISHED: lambda job: inf if job.finished_at is None else job.finished_at,
    SortBy.ID: lambda job: job.job_id,
    SortBy.STATE: lambda job: job.state,
    SortBy.QUEUE: lambda job: job.spec.queue,
    SortBy.PRIORITY: lambda job: job.spec_in_force.priority,
    SortBy.PROGRESS: lambda job: job.done_samples / job.total_samples,
    SortBy.SLOTS: lambda job: 0 if job.allocation is None else job.allocation.num_slots,
    SortBy.LEFT: lambda job: inf if job.seconds_left is None else job.seconds_left,
    SortBy.SPENT: lambda job: job.spent,
    SortBy.PLACE: lambda job: inf if job.in_queue is None else job.in_queue.place,
    SortBy.START: lambda job: inf if job.in_queue is None or job.in_queue.starts_at is None else job.in_queue.starts_at,
}


@pytest.fixture
def jobs(control: LedgerControl, clock: FakeClock) -> LedgerControl:
    """Finished, cancelled before and after steps, running at two speeds, by progress, waiting, and paused."""
    progress = {"samples": 2_000, "measure": "progress"}
    for name, more in (("done", {}), ("gone", {"priority": 2}), ("slow", {}), ("quick", {}),
                       ("scaled", {"work": progress}), ("waits", {"slots": (4, 4)}), ("rests", {})):  # fmt: skip
        control.submit(name, a_spec(**{"slots": (1, 1), **more}), FACTS)
        clock.advance(5)
    done, gone = Life(control, control.trainer, "done").start(), Life(control, control.trainer, "gone").start()
    control.trainer(done.token).commit(a_commit(done, 1000, finished=True))
    Life(control, control.trainer, "done", {done.origin_epoch: done.agent_token}).leave(done, "finished")
    control.trainer(gone.token).commit(a_commit(gone, 400))
    control.cancel("gone", "enough")
    Life(control, control.trainer, "gone", {gone.origin_epoch: gone.agent_token}).leave(gone, "boundary")
    for name, seconds in (("slow", 1.0), ("quick", 0.01), ("scaled", 0.1)):
        order = Life(control, control.trainer, name).start()
        trainer = control.trainer(order.token)
        trainer.heartbeat(a_beat(300))
        trainer.observe([an_observation(300, order, step_seconds=seconds, samples_per_second=10 / seconds)])
        clock.advance(7)
    control.acquire("waits__seg_0")
    control.pause("rests", "lunch")
    control.set_job("slow", JobChanges(priority=7))
    return control


def test_the_jobs_of_a_sweep_are_found_by_its_group(control: LedgerControl) -> None:
    control.submit("alone", a_spec(), FACTS)
    for group in ("g", "g-2"):
        for member in expand(group, parse_sweep(a_spec(), {"seed": [1, 2]})):
            control.submit(member.job_id, member.spec, FACTS)
    control.cancel("g-001", "enough")
    page = control.jobs_page(JobsWanted(group="g", limit=1))
    assert (page.total, [job.job_id for job in page.jobs]) == (2, ["g-000"])
    assert [job.job_id for job in control.jobs(group="g")] == ["g-000", "g-001"]
    assert [job.job_id for job in control.jobs(active_only=True, group="g")] == ["g-000"]
    assert control.jobs(group="alone") == []


def test_every_column_sorts_by_what_it_shows(jobs: LedgerControl) -> None:
    every = jobs.jobs()
    for sort, descending in product(SortBy, (False, True)):
        assert len({SHOWN[sort](job) for job in every}) > 1 or sort in (SortBy.QUEUE, SortBy.SPENT, SortBy.START)
        want = sorted(every, key=SHOWN[sort], reverse=descending)
        first, second = (
            jobs.jobs_page(JobsWanted(sort=sort, descending=descending, offset=offset, limit=4)) for offset in (0, 4)
        )
        assert [*first.jobs, *second.jobs] == want, (sort, descending)
        assert (first.total, second.total, len(first.jobs), second.offset) == (len(every), len(every), 4, 4)
