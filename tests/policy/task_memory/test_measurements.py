"""What `horizon` keeps of a task's jobs: each measurement once, through JSON unchanged, bounded."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from elastic_core.domain import EndedJob, JobView
from elastic_core.policy.horizon.speeds.corrected import Corrected, scales_of
from elastic_core.policy.task_memory import measurements
from elastic_core.policy.task_memory.measurements import Size
from elastic_core.predict.speed import throughput
from elastic_core.predict.speed.throughput import StepTime
from tests.policy.builders import job, measured, point


def a_job(name: str, *step_seconds: float, **more: object) -> JobView:
    """A job of task "t" that was measured on 1, 2, 4, ... slots."""
    points = [point(2**i, 16, seconds) for i, seconds in enumerate(step_seconds)]
    return replace(measured(job(name), *points), task="t", **more)


def after(*snapshots: list[JobView]) -> measurements.TaskMemory:
    """The memory after these snapshots, carried through JSON in between."""
    state: dict[str, object] = {}
    for jobs in snapshots:
        tasks = measurements.recall(state)
        measurements.learn(tasks, jobs)
        state = json.loads(json.dumps({"tasks": measurements.store(tasks)}))
    return measurements.recall(state)["t"]


def test_a_measurement_counts_once_however_often_it_is_seen() -> None:
    one = [a_job("a", 0.1)]
    assert [seen.jobs for seen in after(one, one, one).means.values()] == [1]


def test_steps_under_two_exchanges_are_kept_apart_but_on_one_slot_which_exchanges_nothing() -> None:
    exact, lossy = a_job("a", 0.1, 0.2), a_job("b", 0.1, 0.05)
    lossy = replace(lossy, profile=tuple(replace(point, comm="bytegrad") for point in lossy.profile))
    means = after([exact, lossy]).means.values()
    assert sorted((mean.point.num_slots, mean.point.step_seconds, mean.jobs) for mean in means) == [
        (1, pytest.approx(0.1), 2),
        (2, 0.05, 1),
        (2, 0.2, 1),
    ]


def test_jobs_of_one_task_are_averaged_in_the_logarithm() -> None:
    (seen,) = after([a_job("a", 0.1), a_job("b", 0.4)]).means.values()
    assert seen.jobs == 2
    assert seen.point.step_seconds == pytest.approx(0.2)


def test_what_is_told_on_changes_at_powers_of_two_only() -> None:
    third = after([a_job("a", 0.1), a_job("b", 0.1)], [a_job("a", 0.1), a_job("b", 0.1), a_job("c", 0.8)])
    assert third.points()[0].step_seconds == pytest.approx(0.1)
    fourth = after([a_job(name, 0.1) for name in "abc"] + [a_job("d", 0.8)])
    assert fourth.points()[0].step_seconds == pytest.approx((0.1**3 * 0.8) ** 0.25)


def seen(name: str, step_seconds: float, reports: int) -> JobView:
    """A job of task "t" with so many reports of one configuration."""
    return replace(measured(job(name), replace(point(1, 16, step_seconds), count=reports)), task="t")


def test_what_few_reports_said_is_replaced_by_what_twice_as_many_say() -> None:
    """The first come right after a restart."""
    (alone,) = after([seen("a", 0.3, 1)], [seen("a", 0.1, 2)]).means.values()
    assert (alone.jobs, alone.point.count) == (1, 2)
    assert alone.point.step_seconds == pytest.approx(0.1)
    (both,) = after([seen("a", 0.4, 1), seen("b", 0.1, 64)], [seen("a", 0.1, 8), seen("b", 0.1, 64)]).means.values()
    assert both.jobs == 2
    assert both.point.step_seconds == pytest.approx(0.1)
    (as_many,) = after([seen("a", 0.3, 4)], [seen("a", 0.1, 4)]).means.values()
    assert as_many.point.step_seconds == 0.3


def test_what_more_reports_say_alike_changes_nothing() -> None:
    """Nor what they say of another batch, of which ranks have equal shares."""
    said = after([seen("a", 0.1, 1), seen("b", 0.1, 1), seen("c", 0.8, 1)])
    again = after([seen("a", 0.1, 1), seen("b", 0.1, 1), seen("c", 0.8, 1)], [seen("c", 0.8, 32)])
    assert again.points() == said.points()
    one, other = seen("a", 0.1, 1), seen("a", 0.3, 2)
    other = replace(other, profile=tuple(replace(point, global_batch=15) for point in other.profile))
    assert after([one], [other]).points() == after([one]).points()


def test_a_correction_within_what_a_model_errs_by_changes_no_model_until_corrections_add_up() -> None:
    one, two, four = seen("a", 0.1, 1), seen("a", 0.102, 2), seen("a", 0.11, 4)
    assert after([one], [two]).points() == after([one]).points()
    assert after([one], [two], [four]).points()[0].step_seconds == pytest.approx(0.11)


def test_of_a_job_that_has_reported_enough_nothing_more_is_kept_nor_replaced() -> None:
    enough = after([seen("a", 0.3, 1)], [seen("a", 0.1, measurements.ENOUGH)])
    assert enough.reported["a"].added == {}
    later = after([seen("a", 0.1, measurements.ENOUGH)], [seen("a", 0.5, 2 * measurements.ENOUGH)])
    assert later.points()[0].step_seconds == 0.1


def test_what_is_no_longer_known_of_a_configuration_is_not_corrected() -> None:
    """Others have pushed it out, and one of them has measured it anew since."""
    many = replace(job("b"), task="t", profile=tuple(point(1, 17 + i, 0.1) for i in range(measurements.MOST_POINTS)))
    pushed_out = [seen("a", 0.3, 1), many]
    anew = [*pushed_out, seen("c", 0.2, 1)]
    found = after(pushed_out, anew, [seen("a", 0.1, 2), many, seen("c", 0.2, 1)])
    (again,) = (mean for mean in found.means.values() if mean.point.local_batch == 16)
    assert (again.jobs, again.point.step_seconds) == (1, 0.2)


def test_a_state_that_does_not_say_what_each_job_added_leaves_the_means_as_they_are() -> None:
    few, more = seen("a", 0.3, 1), seen("a", 0.1, 32)
    before = after([few])
    stored = measurements.store({"t": before})
    stored["t"]["told"] = {"a": stored["t"]["told"]["a"][:2]}
    tasks = measurements.recall({"tasks": stored})
    measurements.learn(tasks, [more])
    assert tasks["t"].points() == before.points()


def test_the_work_of_jobs_that_left_is_remembered() -> None:
    assert after([a_job("a", 0.1, done_samples=700)], [a_job("b", 0.1)]).works == [700.0]


def test_what_is_kept_is_bounded() -> None:
    many = replace(job("a"), task="t", profile=tuple(point(1, 16 + i, 0.1) for i in range(200)))
    assert len(after([many]).means) == measurements.MOST_POINTS


def test_noise_comes_from_the_task_at_the_same_stage_until_the_job_has_its_own() -> None:
    task = after(
        [a_job("a", 0.1, done_samples=1000, noise_scale=64.0), a_job("b", 0.1, done_samples=10, noise_scale=8.0)]
    )
    assert task.noise_of(a_job("c", done_samples=900)) == 64.0
    assert task.noise_of(a_job("c", done_samples=0)) == 8.0
    assert task.noise_of(a_job("c", noise_scale=5.0)) == 5.0


def test_a_slower_job_of_a_task_is_known_by_its_scale() -> None:
    usual = a_job("a", 0.1, 0.06)
    model = StepTime.of(throughput.fit(usual.profile, usual.limits), usual.limits)
    thrice = a_job("c", 0.3, 0.18)
    jobs = (usual, thrice, a_job("b"))
    same, slower, unknown = scales_of(jobs, [Corrected.of(model, ())] * 3, [usual.limits] * 3)
    assert unknown == 1.0
    assert slower / same == pytest.approx(3.0)


def test_the_work_of_who_has_left_is_told_in_seconds_at_its_last_rate() -> None:
    tasks: dict[str, measurements.TaskMemory] = {}
    quick, slow = job("quick", task="t", done_samples=1_000), job("slow", task="u", done_samples=1_000)
    assert measurements.learn(tasks, [quick, slow]) == []
    measurements.set_rates(tasks, [quick, slow], [500.0, 10.0])
    stored = measurements.recall(json.loads(json.dumps({"tasks": measurements.store(tasks)})))
    assert measurements.learn(stored, []) == [Size("t", 2.0), Size("u", 100.0)]


def test_a_new_measurement_asks_for_a_new_rate_until_one_of_the_task_has_finished() -> None:
    before, after = job("a", task="t"), measured(job("a", task="t"), point(1, 64, 1.0))
    for works, rate in (([], None), ([7.0], 500.0)):
        tasks = {"t": measurements.TaskMemory(works=list(works))}
        measurements.learn(tasks, [before])
        measurements.set_rates(tasks, [before], [500.0])
        assert measurements.rate_of(tasks, before) == 500.0
        measurements.learn(tasks, [after])
        assert measurements.rate_of(tasks, after) == rate


def test_what_was_stored_before_there_were_rates_is_read_as_without() -> None:
    stored = {"tasks": {"t": {"seen": [], "noise": [], "works": [5.0], "told": {"a": [100, []]}}}}
    tasks = measurements.recall(stored)
    assert measurements.learn(tasks, []) == []
    assert tasks["t"].works == [5.0, 100.0]


def test_a_job_that_left_without_finishing_is_no_work_done() -> None:
    state: dict[str, measurements.TaskMemory] = {}
    measurements.learn(state, [a_job("a", done_samples=700), a_job("b", done_samples=900)])
    measurements.learn(state, [], not_finished=("b", "never-seen"))
    assert state["t"].works == [700.0]


def test_a_job_that_declared_its_work_has_done_all_of_it_however_long_before_its_end_it_was_seen_last() -> None:
    short, half, open_, left = (
        a_job(name, 0.1, total_samples=1000, done_samples=done)
        for name, done in zip("shol", (0, 500, 0, 500), strict=True)
    )
    tasks: dict[str, measurements.TaskMemory] = {}
    measurements.learn(tasks, [short, half, open_, left], declared={"s", "h", "l"})
    measurements.set_rates(tasks, [short, half, open_, left], [10.0] * 4)
    stored = measurements.recall(json.loads(json.dumps({"tasks": measurements.store(tasks)})))
    assert measurements.learn(stored, [], not_finished=("l",)) == [Size("t", 100.0), Size("t", 100.0)]
    assert stored["t"].works == [1000.0, 1000.0]


def ended(name: str, work: int, completed: bool = True) -> EndedJob:
    return EndedJob(job_id=name, work=work, completed=completed)


def test_a_job_whose_end_nobody_knew_has_done_what_it_did_at_its_end_and_not_when_it_was_seen_last() -> None:
    tasks: dict[str, measurements.TaskMemory] = {}
    short = a_job("a", 0.1, total_samples=None, done_samples=0)
    measurements.learn(tasks, [short])
    measurements.set_rates(tasks, [short], [10.0])
    assert measurements.learn(tasks, [], ended=[ended("a", 700), ended("never-seen", 5)]) == [Size("t", 70.0)]
    assert tasks["t"].works == [700.0]
    assert measurements.learn(tasks, [], ended=[ended("a", 700)]) == []  # told again, counted once


def test_of_a_job_that_was_cut_off_what_it_had_done_is_kept_as_less_than_its_work() -> None:
    tasks: dict[str, measurements.TaskMemory] = {}
    cancelled, ran = a_job("a", done_samples=900), a_job("b", done_samples=100)
    measurements.learn(tasks, [cancelled, ran, a_job("never-began", done_samples=0)])
    measurements.set_rates(tasks, [cancelled, ran, a_job("never-began")], [10.0] * 3)
    ends = [ended("a", 800, completed=False), ended("b", 200), ended("never-began", 0, completed=False)]
    stored = measurements.recall(json.loads(json.dumps({"tasks": measurements.store(tasks)})))
    assert measurements.learn(stored, [], not_finished=("a",), ended=ends) == [
        Size("t", 90.0, completed=False), Size("t", 20.0)
    ]  # fmt: skip
    kept = measurements.recall(json.loads(json.dumps({"tasks": measurements.store(stored)})))["t"]
    assert (kept.works, kept.cut_off) == ([200.0], [(0, 900.0)])  # a heartbeat had told of more than it committed


def test_what_was_cut_off_is_forgotten_with_the_works_that_finished_at_the_same_time() -> None:
    memory = measurements.TaskMemory()
    memory.add_work(1.0, completed=False)
    for number in range(measurements.MOST_WORKS):
        memory.add_work(10.0 + number, completed=True)
    memory.add_work(2.0, completed=False)
    memory.forget_old_works()
    assert memory.cut_off == [(0, 1.0), (measurements.MOST_WORKS, 2.0)]
    memory.add_work(99.0, completed=True)
    memory.forget_old_works()
    assert memory.cut_off == [(measurements.MOST_WORKS - 1, 2.0)]
    assert len(memory.works) == measurements.MOST_WORKS


def test_a_job_that_is_away_and_comes_back_is_kept_as_it_was() -> None:
    """Paused, or between two segments: what it has measured counts once, and if it ends there so does its work."""
    tasks: dict[str, measurements.TaskMemory] = {}
    paused = a_job("a", 0.1, done_samples=500)
    measurements.learn(tasks, [paused])
    measurements.learn(tasks, [], not_finished=("a",))
    measurements.learn(tasks, [paused])
    assert [mean.jobs for mean in tasks["t"].means.values()] == [1]
    measurements.learn(tasks, [], not_finished=("a",))
    measurements.learn(tasks, [], not_finished=("a",), ended=[ended("a", 500, completed=False)])
    assert (tasks["t"].works, tasks["t"].cut_off, tasks["t"].reported) == ([], [(0, 500.0)], {})


def test_works_in_samples_and_in_progress_are_kept_apart_and_what_steps_take_is_not() -> None:
    tasks: dict[str, measurements.TaskMemory] = {}
    read, worth = a_job("a", 0.1), a_job("b", 0.1, scale_invariant=True)
    measurements.learn(tasks, [read, worth])
    stored = measurements.recall(json.loads(json.dumps({"tasks": measurements.store(tasks)})))
    measurements.learn(stored, [], ended=[ended("a", 700), ended("b", 40)])
    assert (stored[read.kind_of_work].works, stored[worth.kind_of_work].works) == ([700.0], [40.0])
    assert [mean.jobs for mean in stored["t"].means.values()] == [2]


@pytest.mark.parametrize(("scale_invariant", "rate"), [(False, 500.0), (True, None)])
def test_a_rate_is_worked_out_anew_where_only_jobs_in_another_unit_have_finished(
    scale_invariant: bool, rate: float | None
) -> None:
    tasks = {"t": measurements.TaskMemory(works=[1000.0])}
    before, after = (a_job("a", *steps, scale_invariant=scale_invariant) for steps in ((0.1,), (0.1, 0.06)))
    measurements.learn(tasks, [before])
    measurements.set_rates(tasks, [before], [500.0])
    measurements.learn(tasks, [after])
    assert measurements.rate_of(tasks, after) == rate


def test_a_job_that_ended_before_it_had_done_what_it_declared_teaches_what_it_did() -> None:
    """With the samples that it might read; the work that is told is rounded down."""
    tasks: dict[str, measurements.TaskMemory] = {}
    jobs = [a_job(name, 0.1, total_samples=1000, scale_invariant=True) for name in "abc"]
    measurements.learn(tasks, jobs, declared={"a", "b", "c"})
    measurements.set_rates(tasks, jobs, [10.0] * 3)
    told = measurements.learn(tasks, [], ended=[ended("a", 400), ended("b", 999), ended("c", 1003)])
    assert told == [Size("t", 40.0), Size("t", 100.0), Size("t", 100.0)]
    assert tasks[jobs[0].kind_of_work].works == [400.0, 1000.0, 1000.0]
