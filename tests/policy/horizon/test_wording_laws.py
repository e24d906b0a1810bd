"""Whatever the snapshot: a reason of `horizon` says nothing that its own plan does not show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, Plan, PutFirst, Snapshot, Target, WorkForecast
from elastic_core.policy.base.queue import as_they_stand
from elastic_core.policy.horizon.horizon import Horizon, problem
from tests.policy.builders import apply, decide
from tests.policy.strategies import BUSY, Draw, priced_snapshots, shared_snapshots

PUT_FIRST = re.compile("put first by|not stopped right after its start")
FREE = re.compile(r"at least (\d+) slots? of (\w+), of which (none|\d+) (?:is|are) free")
LONGER = re.compile(r"(no|\d+) jobs? needs? longer")
TOTALS = st.lists(st.floats(1e2, 1e8), min_size=3, max_size=3, unique=True).map(sorted)


def told(picture: Snapshot) -> Iterator[tuple[Snapshot, Plan, JobView, Target]]:
    """Each job of two decisions in a row, a minute apart."""
    for _ in range(2):
        plan = decide(Horizon(), picture)
        for view in as_they_stand(picture):
            yield picture, plan, view, plan.targets[view.job_id]
        after = apply(plan, picture)
        picture = replace(after, now=after.now + 60.0)


def free_in(plan: Plan, picture: Snapshot) -> Counter[str]:
    free = Counter(picture.capacity())
    for target in plan.targets.values():
        free.subtract(dict(target.counts))
    return free


@settings(BUSY, max_examples=25)
@given(shared_snapshots() | priced_snapshots())
def test_who_waits_is_told_what_is_free_and_what_stands_against_it(picture: Snapshot) -> None:
    for shot, plan, view, target in told(picture):
        if target.num_slots:
            continue
        free, reason = free_in(plan, shot), target.reason
        for _, kind, words in FREE.findall(reason):
            assert free[kind] == (0 if words == "none" else int(words)), reason
        kinds = view.limits.types or tuple(shot.capacity())
        fits = any(free[kind] >= view.limits.min_slots for kind in kinds)
        if "could be had" in reason:
            assert fits, reason
        if "the others" in reason:
            assert any(other.num_slots for other in plan.targets.values()), reason
        if "a rule keeps" in reason:
            assert _a_rule_decided(plan), reason
        if "its budget or its preference" in reason:
            assert view.budget is not None or view.prefers_cost, reason
        ruled = re.search(r"the others are with (\d+) jobs? that a rule puts first", reason)
        if ruled:
            first = [other for other in plan.targets.values() if other.num_slots and PUT_FIRST.search(other.reason)]
            assert 0 < int(ruled[1]) <= len(first), reason


def _a_rule_decided(plan: Plan) -> bool:
    return any(PUT_FIRST.search(target.reason) for target in plan.targets.values()) or bool(plan.state["moves"]["left"])


@settings(BUSY, max_examples=25)
@given(shared_snapshots())
def test_what_a_rule_is_said_to_have_done_is_what_that_rule_may_do(picture: Snapshot) -> None:
    for shot, plan, view, target in told(picture):
        if "put first by its priority" in target.reason:
            assert any(view.priority > other.priority for other in shot.jobs), target.reason
        if "put first by the guaranteed share" in target.reason:
            assert f"queue {view.queue}" in target.reason
            assert any(queue.name == view.queue for queue in shot.queues), target.reason
        if "deadline" in target.reason:
            assert view.deadline is not None, target.reason
        if "; meets its deadline" in target.reason:
            assert view.deadline is not None
            assert target.finish_seconds is not None
            assert shot.now + target.finish_seconds[1] <= view.deadline, target.reason
        if target.num_slots:
            assert "waits" not in target.reason
        assert len(plan.targets) == len(shot.jobs)


@st.composite
def open_ended_snapshots(draw: Draw) -> Snapshot:
    """The ends of most jobs are not known, and some are forecast."""
    picture = draw(shared_snapshots())
    return replace(picture, jobs=tuple(draw(st.sampled_from([view, _open_ended(draw, view)])) for view in picture.jobs))


def _open_ended(draw: Draw, view: JobView) -> JobView:
    totals, predictable = draw(st.none() | TOTALS), draw(st.sampled_from([None, 0.2, 0.95]))
    told = WorkForecast(probabilities=(0.3, 0.5, 0.9), totals=tuple(totals), source="history") if totals else None
    return replace(view, total_samples=None, predictable=predictable, work_forecast=told)


@settings(BUSY, max_examples=25)
@given(open_ended_snapshots())
def test_as_many_jobs_as_are_said_to_need_longer_do_by_what_is_told_of_their_work(picture: Snapshot) -> None:
    for shot, plan, view, target in told(picture):
        found, shared = LONGER.search(target.reason), problem(shot)
        if found is None or shared is None:
            continue
        needs = {}
        for row, job in enumerate(shared.jobs):
            left = plan.targets[job.job_id].work_left
            median = max(float(job.remaining_samples), 1.0) if left is None else left.quantiles[1]
            needs[job.job_id] = float(shared.remaining_seconds[row].min()) * median / float(shared.left.mean[row])
        longer = sum(need > needs[view.job_id] for need in needs.values())
        assert longer == (0 if found[1] == "no" else int(found[1])), target.reason


@settings(BUSY, max_examples=25)
@given(shared_snapshots())
def test_only_who_got_slots_that_a_stopped_job_lost_by_a_rule_is_said_to_have_preempted_it(picture: Snapshot) -> None:
    for shot, plan, view, target in told(picture):
        held = {job.job_id: Counter(job.allocation.counts() if job.allocation else {}) for job in as_they_stand(shot)}
        jobs = {job.job_id: job for job in shot.jobs}
        if target.num_slots or not held[view.job_id]:
            assert target.preempted_by == ()
        for by in target.preempted_by:
            gained = Counter(dict(plan.targets[by.job_id].counts)) - held[by.job_id]
            assert gained & held[view.job_id], (view.job_id, by)
            assert (by.priority, by.queue) == (jobs[by.job_id].priority, jobs[by.job_id].queue)
            if by.rule is PutFirst.PRIORITY:
                assert by.priority > view.priority
            elif by.rule is PutFirst.DEADLINE:
                assert jobs[by.job_id].deadline is not None
                assert by.priority >= view.priority
            elif by.rule is PutFirst.GUARANTEE:
                assert by.queue != view.queue
                assert by.queue in {queue.name for queue in shot.queues}
