"""What a decision expects of each job: from where, stored when, and never in the way of the decision itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.control.ledger.tables import KEPT
from elastic_core.control.plane import LedgerControl
from elastic_core.control.scheduling import expectations
from elastic_core.control.scheduling.expectations import MODEL, expected, is_worth_keeping
from elastic_core.domain import JobState, JobView, Layout, Plan, Slot, Target, WorkForecast, WorkLeft
from elastic_core.predict.work.graded import STAGES
from elastic_core.predict.work.work_left import work_left
from elastic_core.protocol.forecasts import DECLARED, Assumption, Forecast, Quantity, median_left
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.spec import JobSpec
from tests.builders import FACTS, FakeClock, Life, a_beat, a_commit, a_spec, an_observation
from tests.policy.builders import holding, job, limits, measured, point

TARGET = Target(counts={"cpu": 4}, global_batch=64, layout=Layout(data=4))
LONG = (1e6, 2e6, 3e6)
HELD = tuple(Slot("cpu-0", index, "cpu") for index in range(4))


def running(**more: object) -> JobView:
    """Measured on four slots at a second a step of 64 samples; 6,400 of them are left."""
    points = point(4, 64, 1.0, sync=0.01), point(2, 64, 1.8, sync=0.01)
    view = job("a", lim=limits(batch=(64, 64)), total_samples=10_000, done_samples=3_600, **more)
    return holding(measured(view, *points), *HELD, batch=64)


def of(view: JobView, target: Target = TARGET) -> Forecast:
    return expected(view, target, 1000.0, lineage=0, policy="fair_share", decision_id=7)


def test_a_policy_that_tells_a_finish_time_is_taken_at_its_word() -> None:
    told = of(running(), replace(TARGET, finish_seconds=(50.0, 60.0, 90.0)))
    assert (told.finish_at, told.finish_source) == ((1050.0, 1060.0, 1090.0), "fair_share")
    assert (told.work_left, told.work_source, told.done) == ((6400.0,) * 3, DECLARED, 3600.0)
    assert told.assumes is Assumption.KEEPS_SLOTS


def test_without_one_the_end_is_the_work_left_at_the_models_speed() -> None:
    told = of(running())
    assert told.finish_source == MODEL
    assert told.finish_at is not None
    assert told.finish_at[1] == pytest.approx(1000.0 + 100.0, abs=6.0)
    assert told.finish_at[0] < told.finish_at[1] < told.finish_at[2]


def test_a_resize_to_come_is_in_the_finish_time() -> None:
    on_two = replace(TARGET, counts={"cpu": 2}, layout=Layout(data=2))
    told = of(running(resize_seconds=500.0), on_two)
    assert told.finish_at is not None
    assert told.finish_at[1] == pytest.approx(1000.0 + 500.0 + 180.0, rel=0.02)


def test_progress_goes_at_the_rate_of_the_goodput() -> None:
    """At a batch of 64 with a noise scale of 32 and a reference of 16, a sample is worth half of one there."""
    view = replace(running(), limits=limits(batch=(16, 64)), noise_scale=32.0)
    samples, progress = of(view).finish_at, of(replace(view, scale_invariant=True)).finish_at
    assert samples is not None
    assert progress is not None
    assert progress[1] - 1000.0 == pytest.approx(2 * (samples[1] - 1000.0), rel=0.01)


def test_who_may_read_so_many_samples_more_is_done_once_it_has() -> None:
    """At a batch of 64, of which a sample is worth half of one of the reference batch: a hundred steps of a second."""
    view = replace(running(), limits=limits(batch=(16, 64)), noise_scale=32.0, scale_invariant=True)
    view = replace(view, total_samples=10**9)
    told = of(replace(view, samples_left=6_400))
    assert told.work_left == (6_400,) * 3
    assert told.finish_at is not None
    assert told.finish_at[1] == pytest.approx(1000.0 + 100.0, abs=6.0)
    unknown = of(replace(view, total_samples=None, most_samples=5_000, samples_left=1_400))
    assert unknown.work_left[2] <= 5_000 - view.done_samples
    assert unknown.finish_at is not None
    assert unknown.finish_at[1] <= 1000.0 + 1_400 / 64 + 2.0


FORECAST = WorkForecast(probabilities=(0.1, 0.5, 0.9), totals=(8e3, 1e4, 1.2e4), source="loss curve")


def test_the_work_left_that_is_kept_is_what_was_decided_by_and_without_it_the_raw_forecast_which_says_so() -> None:
    view = replace(running(), total_samples=None, work_forecast=FORECAST)
    decided = WorkLeft(quantiles=(10.0, 20.0, 30.0), source="history of its task")
    told = of(view, replace(TARGET, work_left=decided))
    assert (told.work_left, told.work_basis) == ((10.0, 20.0, 30.0), "by history of its task")
    raw = of(view)
    assert raw.work_left == work_left(view)[0]
    assert raw.work_basis == "by loss curve, on which no decision rests"
    assert is_worth_keeping(raw, replace(raw, work_decided=True)), "the same figures, decided by now"
    assert of(running()).work_basis == "as declared"


def test_who_waits_or_was_never_measured_has_no_finish_time() -> None:
    for told in (of(running(), Target.nothing("waits")), of(job("a"))):
        assert (told.finish_at, told.assumes, told.finish_source) == (None, None, "")


def test_a_forecast_is_kept_when_it_says_something_new() -> None:
    first = of(running())
    assert is_worth_keeping(None, first)
    assert first.finish_at is not None
    low, median, high = first.finish_at

    def later(**more: object) -> Forecast:
        return replace(first, at=1010.0, **more)  # type: ignore[arg-type]

    assert not is_worth_keeping(first, later())
    assert not is_worth_keeping(first, later(finish_at=(low, median + 3.0, high)))
    assert is_worth_keeping(first, later(finish_at=(low, median + 8.0, high)))
    assert is_worth_keeping(first, later(finish_at=None))
    assert is_worth_keeping(first, later(work_left=(6400.0, 7000.0, 9000.0)))
    assert is_worth_keeping(first, later(done=3800.0, work_left=(6200.0,) * 3))
    assert not is_worth_keeping(first, later(done=3700.0, work_left=(6300.0,) * 3))
    assert is_worth_keeping(first, later(lineage=1))
    assert is_worth_keeping(first, replace(first, at=1060.0))


def live(control: LedgerControl, clock: FakeClock, steps: int = 1000) -> Life:
    """A job of 10,000 samples trained to its end, ten samples and a tenth of a second a step, decided on often."""
    control.submit("job-a", a_spec(batch=(10, 10)), FACTS)
    life = Life(control, control.trainer, "job-a")
    order = life.start()
    trainer = control.trainer(order.token)
    for step in range(100, steps, 100):
        clock.advance(10.0)
        trainer.heartbeat(a_beat(step))
        trainer.observe([an_observation(step, order, step_seconds=0.1)])
        control.decide("a look")
    clock.advance(10.0)
    trainer.commit(a_commit(order, steps, finished=True))
    return life


def test_a_life_is_forecast_and_graded(control: LedgerControl, clock: FakeClock) -> None:
    live(control, clock)
    kept = control.forecasts("job-a")
    assert (kept[0].done, kept[0].finish_at) == (0.0, None)
    assert kept[-1].done == 9000.0
    ended = control.job("job-a")
    assert (ended.state, ended.forecast) == (JobState.FINISHED, None)
    work = [grade for grade in ended.hindsight if grade.quantity is Quantity.WORK]
    finish = [grade for grade in ended.hindsight if grade.quantity is Quantity.FINISH]
    assert [grade.stage for grade in work] == list(STAGES)
    assert all(grade.error == 0.0 and grade.held for grade in work), "its work was declared"
    assert [grade.stage for grade in finish] == [0.25, 0.5, 0.75], "before it was measured its end was not known"
    assert all(grade.held and abs(grade.error or 0.0) < 0.1 for grade in finish)
    told = control.forecast_report(10)
    assert (told.jobs, told.declared) == (1, 1)
    assert sum(stage.number for stage in told.stages) == 3


def test_the_time_left_of_a_job_is_its_forecasts(control: LedgerControl, clock: FakeClock) -> None:
    control.submit("job-a", a_spec(batch=(10, 10)), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    trainer = control.trainer(order.token)
    assert control.job("job-a").seconds_left is None
    trainer.heartbeat(a_beat(100))
    trainer.observe([an_observation(100, order, step_seconds=0.1, samples_per_second=100.0)])
    assert control.job("job-a").seconds_left == pytest.approx(90.0), "no decision yet: at the measured speed"
    control.decide("a look")
    status = control.job("job-a")
    assert status.forecast is not None
    assert status.forecast.finish_at is not None
    clock.advance(30.0)
    assert control.job("job-a").seconds_left == pytest.approx(status.forecast.finish_at[1] - clock.now)


def test_a_job_that_has_outlasted_the_median_of_its_forecast_has_the_rest_of_it_left(
    control: LedgerControl, clock: FakeClock
) -> None:
    control.submit("job-a", a_spec(batch=(10, 10)), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    trainer = control.trainer(order.token)
    trainer.heartbeat(a_beat(100))
    trainer.observe([an_observation(100, order, step_seconds=0.1, samples_per_second=100.0)])
    control.decide("a look")
    forecast = control.job("job-a").forecast
    assert forecast is not None
    assert forecast.finish_at is not None
    _, median, high = forecast.finish_at
    clock.now = median + 0.2 * (high - median)  # 42 % of all ends may still come, half of them within 0.525
    assert control.job("job-a").seconds_left == pytest.approx(0.525 * (high - median))
    clock.now = high + 1.0
    assert control.job("job-a").seconds_left == pytest.approx(90.0), "none that it named: at the measured speed"


@pytest.mark.parametrize(
    ("at", "left"),
    [(0.0, 10.0), (9.0, 1.0), (10.0, 6.25), (12.0, 5.25), (17.5, 2.5), (19.0, 1.0), (20.0, 0.0), (30.0, 0.0)],
)
def test_past_the_median_the_rest_is_counted_from_there_and_never_beyond_the_interval(at: float, left: float) -> None:
    assert median_left((5.0, 10.0, 20.0), at) == pytest.approx(left)


def test_what_is_known_exactly_leaves_what_is_left_of_it() -> None:
    assert [median_left((10.0, 10.0, 10.0), at) for at in (4.0, 10.0, 11.0)] == [6.0, 0.0, 0.0]


def test_a_job_that_is_stopped_is_graded_and_forgets_it_when_it_goes_on(
    control: LedgerControl, clock: FakeClock
) -> None:
    control.submit("job-a", a_spec(batch=(10, 10)), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    trainer = control.trainer(order.token)
    trainer.observe([an_observation(100, order, step_seconds=0.1)])
    control.decide("a look")
    clock.advance(3600.0)
    assert [grade.held for grade in control.cancel("job-a", "enough").hindsight] == [False], "its end is long passed"
    revived = control.revive("job-a")
    assert (revived.hindsight, revived.state) == ((), JobState.ACTIVE)


def test_a_forecast_that_fails_leaves_the_decision_alone(
    control: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> Forecast:
        raise ZeroDivisionError("no speed, no share")

    monkeypatch.setattr(expectations, "expected", fails)
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    assert order.allocation.num_slots == 4
    assert control.forecasts("job-a") == []


def test_a_rollback_is_graded_by_the_lineage_that_it_opened(control: LedgerControl, clock: FakeClock) -> None:
    life = live(control, clock)
    (last,) = control.checkpoints("job-a")
    assert control.rollback("job-a", last.checkpoint_id).hindsight == ()
    control.acquire(life.segment_id())
    control.cancel("job-a", "enough")
    assert {forecast.lineage for forecast in control.forecasts("job-a")} == {0, 1}
    assert control.job("job-a").hindsight == ()


def test_what_the_default_policy_decides_by_is_stored_shown_and_graded(
    control: LedgerControl, clock: FakeClock
) -> None:
    """Jobs of its task took 10,000 samples each; the prior, which stands behind history, expects another work."""
    control.set_policy("horizon")
    for name in ("old-a", "old-b", "old-c"):
        finish(control, clock, name, a_spec(batch=(10, 10)))
    order = begin(control, "job-a", a_spec(batch=(10, 10), work={"samples": 1_000_000, "target_loss": 0.1}))
    first = control.forecasts("job-a")[-1]
    assert (first.work_source, first.work_decided) == ("history of its task", True)
    assert first.work_left[1] == pytest.approx(10_000, rel=0.2)
    assert control.job("job-a").forecast == first
    (view,) = control.snapshot().jobs
    assert view.work_forecast is not None
    assert view.work_forecast.source == "prior"
    assert work_left(view)[0][1] > 2 * first.work_left[1]
    control.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    at_submission = next(grade for grade in control.job("job-a").hindsight if grade.quantity is Quantity.WORK)
    assert at_submission.source == "history of its task"
    assert at_submission.error == pytest.approx(first.work_left[1] / 10_000 - 1.0)


def begin(control: LedgerControl, name: str, spec: JobSpec) -> LaunchOrder:
    control.submit(name, spec, FACTS)
    return Life(control, control.trainer, name).start()


def finish(control: LedgerControl, clock: FakeClock, name: str, spec: JobSpec) -> None:
    """As a decision saw it last, all but done."""
    order = begin(control, name, spec)
    trainer = control.trainer(order.token)
    trainer.heartbeat(a_beat(999))
    control.decide("a look")
    clock.advance(10.0)
    trainer.commit(a_commit(order, 1000, finished=True))
    Life(control, control.trainer, name, {order.origin_epoch: order.agent_token}).leave(order, "finished")


def test_a_plan_that_stays_for_want_of_another_expects_nothing_new(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    Life(control, control.trainer, "job-a").start()
    shown, made = control.snapshot(), Plan(policy="horizon", targets={"job-a": replace(TARGET, finish_seconds=LONG)})
    for policy, kept in (("horizon", {"job-a"}), (KEPT, set())):
        plan = replace(made, policy=policy)
        told = control._ledger.read(lambda tx, plan=plan: expectations.worth_keeping(tx, shown, plan, 1))
        assert told.keys() == kept
