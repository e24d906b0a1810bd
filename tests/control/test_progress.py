"""Jobs whose measure is progress, in the ledger: what is committed, told, shown, and decided from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import EndedJob, ExchangeFigures, JobState, Link, to_json
from elastic_core.protocol.trainer import Heartbeat
from tests.builders import FACTS, Life, a_beat, a_commit, a_spec, an_observation, is_forecast
from tests.policy.builders import A_COST, told_costs

WORK = {"work": {"samples": 10_000, "measure": "progress"}}  # at a base batch of 16


def a_life(control: LedgerControl, job_id: str = "job-a", **spec: object) -> Life:
    control.submit(job_id, a_spec(**{**WORK, **spec}), FACTS)
    return Life(control, control.trainer, job_id)


def a_beat_of(step: int, samples: int, progress: float, gain: float) -> Heartbeat:
    return Heartbeat(step=step, samples=samples, at=0.0, progress=progress, gain=gain)


def test_decisions_count_in_progress_and_others_in_samples(control: LedgerControl) -> None:
    order = a_life(control).start()
    trainer = control.trainer(order.token)
    trainer.commit(a_commit(order, 5, samples=640, progress=160.5, gain=2.0))
    view = control.snapshot().jobs[0]
    assert (view.scale_invariant, view.total_samples, view.done_samples) == (True, 10_000, 160)
    trainer.heartbeat(a_beat_of(9, 1152, 288.25, 2.0))
    assert control.snapshot().jobs[0].done_samples == 288

    control.submit("job-b", a_spec(), FACTS)
    control.acquire("job-b__seg_0")
    other = next(job for job in control.snapshot().jobs if job.job_id == "job-b")
    assert (other.scale_invariant, other.total_samples, other.done_samples) == (False, 10_000, 0)


def test_the_status_tells_work_from_what_was_read_and_what_will_be(control: LedgerControl) -> None:
    life = a_life(control)
    order = life.start()
    assert control.job("job-a").predicted_samples == 10_000  # nothing is known yet: at the base batch
    batch = order.allocation.global_batch
    control.trainer(order.token).heartbeat(a_beat_of(10, 10 * batch, 1_000.0, batch / 16 / 2))
    job = control.job("job-a")
    assert (job.done_samples, job.total_samples, job.samples_read) == (1_000, 10_000, 10 * batch)
    assert job.gain == batch / 16 / 2
    assert job.predicted_samples == 10 * batch + 2 * 9_000  # a sample is worth half of one at the base batch
    (checkpointless,) = [j for j in control.jobs() if j.job_id == "job-a"]
    assert checkpointless == job


def test_the_cap_bounds_what_is_predicted(control: LedgerControl) -> None:
    order = a_life(control, work={**WORK["work"], "max_samples": 12_000}).start()
    batch = order.allocation.global_batch
    control.trainer(order.token).heartbeat(a_beat_of(10, 10 * batch, 1_000.0, batch / 16 / 2))
    assert control.job("job-a").predicted_samples == 12_000


@pytest.mark.parametrize("end", [{"target_loss": 0.1}, {"patience": 3}])
def test_what_is_predicted_where_the_end_is_not_known_goes_by_the_forecast_and_no_further_than_the_limit(
    control: LedgerControl, end: dict[str, object]
) -> None:
    order = a_life(control, work={**WORK["work"], **end}).start()
    batch = order.allocation.global_batch
    read = 10 * batch
    control.trainer(order.token).heartbeat(a_beat_of(10, read, 1_000.0, batch / 16 / 2))
    is_forecast(control, "job-a", 1_500.0, done=500.0)
    assert control.job("job-a").predicted_samples == read + 2 * 1_000
    is_forecast(control, "job-a", 50_000.0, done=500.0)
    assert control.job("job-a").predicted_samples == read + 2 * 9_000


def test_decisions_know_what_a_job_may_still_read(control: LedgerControl) -> None:
    capped = {"work": {**WORK["work"], "max_samples": 4_000}}
    order = a_life(control, **capped).start()
    assert control.snapshot().jobs[0].samples_left == 4_000
    trainer = control.trainer(order.token)
    trainer.commit(a_commit(order, 5, samples=1_000, progress=300.5, gain=2.0))
    assert control.snapshot().jobs[0].samples_left == 3_000
    trainer.heartbeat(a_beat_of(9, 1_500, 450.0, 2.0))
    view = control.snapshot().jobs[0]
    assert (view.samples_left, view.remaining_samples, view.total_samples) == (2_500, 2_500, 10_000)
    control.decide("it has come further")
    forecast = control.job("job-a").forecast
    assert forecast is not None
    assert forecast.work_left == (2_500,) * 3
    trainer.heartbeat(a_beat_of(19, 4_100, 900.0, 2.0))
    assert control.snapshot().jobs[0].samples_left == 0


def test_a_cap_bounds_what_a_job_may_take_whose_end_is_not_known(control: LedgerControl) -> None:
    a_life(control, work={**WORK["work"], "max_samples": 4_000, "target_loss": 0.1}).start()
    a_life(control, "job-b", work={**WORK["work"], "target_loss": 0.1})
    control.acquire("job-b__seg_0")
    views = {view.job_id: view for view in control.snapshot().jobs}
    assert {job_id: view.most_samples for job_id, view in views.items()} == {"job-a": 4_000, "job-b": 10_000}
    assert to_json(control.snapshot())["jobs"][1].get("samples_left", "not there") == "not there"


def test_seconds_left_are_those_of_what_is_still_to_be_read(control: LedgerControl) -> None:
    order = a_life(control).start()
    batch = order.allocation.global_batch
    trainer = control.trainer(order.token)
    trainer.heartbeat(a_beat_of(10, 10 * batch, 1_000.0, batch / 16 / 2))
    trainer.observe([an_observation(10, order, progress=1_000.0, gain=batch / 32, samples_per_second=100.0)])
    assert control.job("job-a").seconds_left == pytest.approx(2 * 9_000 / 100)


def test_a_finished_job_has_read_what_it_read(control: LedgerControl) -> None:
    life = a_life(control)
    order = life.start()
    commit = a_commit(order, 90, samples=9_000, progress=10_003.5, gain=1.5, finished=True, notes=("a", "b"))
    control.trainer(order.token).commit(commit)
    control.trainer(order.token).commit(commit)  # whose answer was lost
    job = control.job("job-a")
    assert (job.state, job.done_samples, job.samples_read, job.predicted_samples) == (
        JobState.FINISHED, 10_003, 9_000, 9_000,
    )  # fmt: skip
    assert job.notes == ("a", "b")
    assert control.checkpoints("job-a")[-1].progress == 10_003.5
    assert control.checkpoints("job-a")[-1].gain == 1.5


def test_the_choice_of_an_exchange_is_kept_with_its_segment_and_told_of_the_job(control: LedgerControl) -> None:
    order = a_life(control).start()
    trainer = control.trainer(order.token)
    trainer.observe([an_observation(10, order)])
    assert control.job("job-a").exchange is None
    figures = (ExchangeFigures(algorithm="bytegrad", measured_seconds=0.5, measured_bytes=25e6),
               ExchangeFigures(algorithm="allreduce", predicted_seconds=2.0, predicted_bytes=101e6))  # fmt: skip
    chosen = an_observation(20, order, comm="bytegrad", exchanges=figures)
    trainer.observe([chosen])
    trainer.observe([an_observation(30, order, comm="bytegrad")])
    assert control.job("job-a").exchange == chosen.choice
    assert chosen.choice is not None
    assert chosen.choice.figures == figures


def test_decisions_are_shown_what_its_ranks_told_of_exchanges_last(control: LedgerControl) -> None:
    order = a_life(control, work={"samples": 10_000}, comm={"algorithm": "auto", "allow": "lossy"}).start()
    trainer = control.trainer(order.token)
    figures = (ExchangeFigures(algorithm="allreduce", measured_seconds=0.5),)
    trainer.observe([an_observation(10, order, exchanges=figures)])
    assert control.snapshot().jobs[0].exchange is None
    held = order.allocation
    needs = replace(told_costs(A_COST, num_nodes=held.num_nodes, link=Link(1e-5, 1e-9)), num_slots=held.num_slots)
    trainer.observe([an_observation(20, order, exchanges=figures, exchange_needs=needs)])
    assert control.snapshot().jobs[0].exchange == needs


def test_a_note_with_every_commit_is_said_once(control: LedgerControl) -> None:
    order = a_life(control).start()
    for step in (1, 2, 3):
        control.trainer(order.token).commit(a_commit(order, step, notes=("the noise is unknown",)))
    assert control.job("job-a").notes == ("the noise is unknown",)


def test_losses_of_finished_runs_are_over_the_work_in_its_own_measure(control: LedgerControl) -> None:
    order = a_life(control).start()
    trainer = control.trainer(order.token)
    trainer.observe([an_observation(step, order, progress=7.0 * step, gain=1.0) for step in (1, 2)])
    trainer.commit(a_commit(order, 2, progress=14.0, gain=1.0, finished=True))
    (run,) = control.finished_runs(5)
    assert [work for work, _ in run.losses] == [7, 14]
    assert run.description.measure == "progress"


@pytest.mark.parametrize(
    ("work", "samples", "progress", "loss", "completed"),
    [
        ({"max_samples": 12_000, "target_loss": 0.1}, 12_000, 4_000.0, 0.5, False),  # ended at the cap
        ({"max_samples": 12_000, "patience": 3}, 12_000, 4_000.0, 0.5, False),
        ({"max_samples": 12_000, "target_loss": 0.1}, 12_000, 4_000.0, 0.1, True),  # its last step was good enough
        ({"max_samples": 12_000, "target_loss": 0.1}, 11_000, 4_000.0, 0.1, True),
        ({"max_samples": 12_000, "patience": 3}, 11_000, 4_000.0, 0.5, True),
        ({"max_samples": 12_000}, 12_000, 4_000.0, 0.5, True),  # how much work it is was declared
        ({"target_loss": 0.1}, 11_000, 10_000.0, 0.5, False),  # ended at its amount of work
    ],
)
def test_a_finished_job_that_took_the_most_it_might_is_no_completed_run(
    control: LedgerControl, work: dict[str, object], samples: int, progress: float, loss: float, completed: bool
) -> None:
    order = a_life(control, work={**WORK["work"], **work}).start()
    trainer = control.trainer(order.token)
    trainer.observe([an_observation(2, order, samples=samples, progress=progress, gain=1.0, loss=loss)])
    trainer.commit(a_commit(order, 2, samples=samples, progress=progress, gain=1.0, finished=True))
    assert control.job("job-a").state == JobState.FINISHED
    (run,) = control.finished_runs(5)
    assert (run.completed, run.work_done) == (completed, progress)
    assert control.snapshot().ended == (EndedJob(job_id="job-a", work=int(progress), completed=completed),)


@pytest.mark.parametrize(
    ("samples", "loss", "completed"), [(10_000, 0.5, False), (10_000, 0.1, True), (9_000, 0.5, True)]
)
def test_a_job_in_samples_that_never_reached_its_target_is_no_completed_run(
    control: LedgerControl, samples: int, loss: float, completed: bool
) -> None:
    order = a_life(control, work={"samples": 10_000, "target_loss": 0.1}).start()
    trainer = control.trainer(order.token)
    trainer.observe([an_observation(2, order, samples=samples, loss=loss)])
    trainer.commit(a_commit(order, 2, samples=samples, finished=True))
    (run,) = control.finished_runs(5)
    assert (run.completed, run.work_done) == (completed, samples)
    assert control.snapshot().ended == (EndedJob(job_id="job-a", work=samples, completed=completed),)


def test_a_job_with_patience_has_no_known_end_for_decisions(control: LedgerControl) -> None:
    a_life(control, work={"samples": 10_000, "patience": 3}).start()
    view = control.snapshot().jobs[0]
    assert (view.total_samples, view.scale_invariant) == (None, False)


def test_beats_of_samples_store_no_progress(control: LedgerControl) -> None:
    order = a_life(control, work={"samples": 10_000}).start()
    control.trainer(order.token).heartbeat(a_beat(4))
    job = control.job("job-a")
    assert (job.done_samples, job.samples_read, job.predicted_samples, job.gain) == (40, 40, None, None)
