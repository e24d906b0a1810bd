"""What finished jobs teach: from the ledger to a file, from the file into the snapshots of decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import exp
from pathlib import Path
from random import Random

import numpy as np
import pytest
from sqlalchemy import create_engine, text
from structlog.testing import capture_logs

from elastic_core.control.ledger.finished import describe
from elastic_core.control.plane import LedgerControl
from elastic_core.control.scheduling.predicting import lessons, refit
from elastic_core.control.scheduling.predicting.predictors import (
    CLASS_SECONDS,
    REFRESH_SECONDS,
    STALE_CLASS_SECONDS,
    STALE_SECONDS,
)
from elastic_core.domain import JobView, ProfilePoint, to_json
from elastic_core.policy.aiturbo.aiturbo import is_predictable
from elastic_core.policy.base.remaining_distribution import PROBABILITIES, History, remaining_work
from elastic_core.predict.speed.fit import job_models
from elastic_core.protocol.encoding import dumps
from elastic_core.protocol.records import FinishedRun
from elastic_core.services.backups import NEW_EPOCHS
from elastic_core.snapshot.job_reports import shown_count
from tests.builders import FACTS, FakeClock, Life, a_beat, a_cluster, a_control, a_spec, an_observation
from tests.predict.forecasts.builders import a_run, history

REPORTS = 40
TARGET = 0.35
FALLS, JUMPS = "examples.digits:Digits", "examples.tabular:Tabular"
UNTIL = {"samples": 100_000, "target_loss": TARGET}

Losses = Sequence[tuple[int, float]]


def falls(rng: Random) -> Losses:
    """Along a curve, down to about 0.3."""
    speed = rng.uniform(0.08, 0.12)
    return [(100 * k, (0.05 + 1.5 / (1 + speed * k)) * exp(rng.gauss(0, 0.01))) for k in range(1, REPORTS + 1)]


def jumps(rng: Random) -> Losses:
    """Wanders about, and is down in the end all the same."""
    return [(100 * k, rng.uniform(0.8, 2.0) if k < 34 else 0.2) for k in range(1, REPORTS + 1)]


MEASURED = ProfilePoint(
    num_slots=1, num_nodes=1, type="cpu", global_batch=16, local_batch=16, accumulation=1, step_seconds=0.1,
    sync_seconds=0.0, count=shown_count(REPORTS),
)  # fmt: skip


def finished_run(number: int, losses: Losses, task: str = FALLS) -> FinishedRun:
    return FinishedRun(
        job_id=f"past-{number:03d}", finished_at=1000.0 + number,
        description=describe(a_spec(entry_point=task), FACTS, 10_000), resubmitted=number % 4 > 1,
        losses=tuple(losses), work=100 * REPORTS, profile=(MEASURED,),
    )  # fmt: skip


@cache
def runs(count: int = 60, task_tells: bool = True) -> tuple[FinishedRun, ...]:
    """Half fall, half jump. Where the task does not tell, all of them are of one, and only the run does."""
    rng, made = Random(5), []
    for number in range(count):
        course, task = ((falls, FALLS), (jumps, JUMPS))[number % 2]
        made.append(finished_run(number, course(rng), task if task_tells else FALLS))
    return tuple(made)


def into_ledger(url: str, past: Sequence[FinishedRun]) -> None:
    """As the ledger would hold them. The leases that they were written under are left out."""
    engine = create_engine(url)
    with engine.begin() as sql:
        sql.execute(text("SET session_replication_role = replica"))  # no triggers, no foreign keys
        for run in past:
            sql.execute(
                text(
                    "INSERT INTO jobs (id, spec, facts, state, lineage, total_samples, submitted_at, finished_at,"
                    " notes, results) VALUES (:id, CAST(:spec AS jsonb), CAST(:facts AS jsonb), 'finished', 0, 10000,"
                    " :at - 100, :at, '[]', '{}')"
                ),
                {"id": run.job_id, "spec": dumps(to_json(a_spec(entry_point=run.description.entry_point))),
                 "facts": dumps(to_json(FACTS)), "at": run.finished_at},
            )  # fmt: skip
            sql.execute(
                text(
                    "INSERT INTO observations (job_id, segment_id, epoch, lineage, step, samples, at, passes,"
                    " num_slots, num_nodes, type, global_batch, local_batch, accumulation, step_seconds, sync_seconds,"
                    " samples_per_second, loss, learning_rate, memory_bytes, metrics) VALUES (:id, :id, :epoch, 0,"
                    " :step, :samples, 0, 0, 1, 1, 'cpu', 16, 16, 1, 0.1, 0, 160, :loss, 0.1, 0, '{}')"
                ),
                [
                    {"id": run.job_id, "epoch": 10_000 + int(run.finished_at), "step": step, "samples": samples,
                     "loss": loss}
                    for step, (samples, loss) in enumerate(run.losses)
                ],
            )  # fmt: skip
    engine.dispose()


@pytest.fixture(scope="module")
def learnt_from_tasks(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _fitted(tmp_path_factory.mktemp("tasks") / "c.skops", runs())


@pytest.fixture(scope="module")
def learnt_from_runs(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _fitted(tmp_path_factory.mktemp("runs") / "c.skops", runs(task_tells=False))


def _fitted(path: Path, past: Sequence[FinishedRun]) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lessons, "KINDS", ("logistic regression",))
        said = refit.refit_classes(lessons.lessons_of(past), path)
        assert "fitted to 60 finished jobs, 30 of them unpredictable" in said
    return path.read_bytes()


def put(control: LedgerControl, content: bytes) -> Path:
    path = control.settings.predictability_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def the_job(control: LedgerControl, job_id: str) -> JobView:
    (found,) = (job for job in control.snapshot().jobs if job.job_id == job_id)
    return found


def submit(control: LedgerControl, job_id: str, task: str = FALLS, **spec: object) -> Life:
    control.submit(job_id, a_spec(entry_point=task, **{"work": UNTIL, **spec}), FACTS)
    control.acquire(f"{job_id}__seg_0")
    return Life(control, control.trainer, job_id)


def report(control: LedgerControl, life: Life, losses: Losses) -> None:
    order = life.start()
    told = [an_observation(samples // 10, order, samples=samples, loss=loss) for samples, loss in losses]
    control.trainer(order.token).observe(told)


def test_from_finished_jobs_of_a_ledger_to_the_class_of_the_next_one(
    control: LedgerControl, ledger_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lessons, "KINDS", ("logistic regression",))
    into_ledger(ledger_url, runs())
    assert control.finished_runs(100) == [replace(run, resubmitted=run.job_id > "past-001") for run in runs()]
    said = refit.refit_all(control, control.settings)
    assert said.startswith("predictability: logistic regression fitted to 60 finished jobs, 30 of them unpredictable")
    submit(control, "next-a", FALLS)
    submit(control, "next-b", JUMPS)
    good, bad = the_job(control, "next-a").predictable, the_job(control, "next-b").predictable
    assert good is not None
    assert bad is not None
    assert good > 0.7
    assert bad < 0.3


def test_a_fit_is_one_callers_once_an_hour_and_at_once_after_an_import(
    control: LedgerControl, clock: FakeClock
) -> None:
    assert refit.claim(control.settings, clock())
    stamp = next(control.settings.predictability_file().parent.iterdir()).stat().st_mtime
    assert not refit.claim(control.settings, stamp + refit.EVERY_SECONDS - 1)
    assert refit.claim(control.settings, stamp + refit.EVERY_SECONDS + 1)
    assert not refit.claim(control.settings, stamp + 1)
    refit.refit_soon(control.settings)
    assert refit.claim(control.settings, stamp + 1)
    assert "too few to learn from" in refit.refit_all(control, control.settings)


@pytest.mark.parametrize(
    ("past", "says"), [(runs()[:30], "30 jobs, 15 of them"), (runs(120)[::2], "60 jobs, 0 of them unpredictable")]
)
def test_too_few_jobs_or_none_of_a_class_give_no_classifier(
    tmp_path: Path, past: Sequence[FinishedRun], says: str
) -> None:
    assert says in refit.refit_classes(lessons.lessons_of(past), tmp_path / "c.skops")
    assert list(tmp_path.iterdir()) == []


def test_without_a_classifier_the_class_is_unknown(control: LedgerControl) -> None:
    submit(control, "job-a")
    assert the_job(control, "job-a").predictable is None


def test_declared_work_is_believed_and_not_asked_about(control: LedgerControl, learnt_from_tasks: bytes) -> None:
    put(control, learnt_from_tasks)
    submit(control, "job-a", work={"samples": 500})
    job = the_job(control, "job-a")
    assert (job.total_samples, job.predictable, job.expected_samples) == (500, None, None)


def test_a_job_turns_predictable_while_it_runs(
    control: LedgerControl, clock: FakeClock, learnt_from_runs: bytes
) -> None:
    """Its submission says nothing: all jobs of this installation look alike. Its losses do."""
    put(control, learnt_from_runs)
    life = submit(control, "job-a")
    before = the_job(control, "job-a")
    report(control, life, falls(Random(77))[:20])
    clock.advance(CLASS_SECONDS + 1)
    assert the_job(control, "job-a").predictable == before.predictable  # a decision does not ask again
    control.reconcile([])
    after = the_job(control, "job-a")
    assert before.predictable is not None
    assert after.predictable is not None
    assert before.predictable < 0.7 < after.predictable
    assert after.expected_samples == pytest.approx(4000, rel=0.4)  # where runs like it come down to the target
    assert not is_predictable(before)
    assert is_predictable(after)


def test_a_decision_asks_again_only_where_nobody_reconciles(
    control: LedgerControl, clock: FakeClock, learnt_from_runs: bytes
) -> None:
    put(control, learnt_from_runs)
    life = submit(control, "job-a")
    before = the_job(control, "job-a").predictable
    report(control, life, falls(Random(77))[:20])
    clock.advance(STALE_CLASS_SECONDS - 1)
    assert the_job(control, "job-a").predictable == before
    clock.advance(2)
    assert the_job(control, "job-a").predictable != before


def test_a_new_file_takes_effect_and_a_broken_one_is_refused_and_does_without(
    control: LedgerControl, clock: FakeClock, learnt_from_tasks: bytes
) -> None:
    put(control, learnt_from_tasks)
    submit(control, "job-a")
    assert the_job(control, "job-a").predictable is not None
    path = put(control, learnt_from_tasks[:5000])
    clock.advance(CLASS_SECONDS + 1)
    with capture_logs() as entries:
        control.reconcile([])
        assert the_job(control, "job-a").predictable is None
        clock.advance(CLASS_SECONDS + 1)
        control.reconcile([])
        assert the_job(control, "job-a").predictable is None
    assert [str(path) in entry["event"] for entry in entries if entry["log_level"] == "error"] == [
        True
    ]  # said once, by name
    assert control.acquire("job-a__seg_0").segment_id == "job-a__seg_0"
    put(control, learnt_from_tasks)
    clock.advance(CLASS_SECONDS + 1)
    control.reconcile([])
    assert the_job(control, "job-a").predictable is not None


def on_two_types(control: LedgerControl, clock: FakeClock) -> Life:
    """A job of two cpu slots, then of two slots of a type that is three times as fast."""
    control.set_cluster(a_cluster({"node-a": 2}))
    life = submit(control, "teacher", slots=(2, 2))
    for kind, seconds in (("cpu", 0.3), ("fast", 0.1)):
        order = life.start()
        told = [
            an_observation(step, order, step_seconds=seconds, sync_seconds=seconds / 10, type=kind)
            for step in range(1 + 50 * (kind == "fast"), 30 + 50 * (kind == "fast"))
        ]
        control.trainer(order.token).observe(told)
        if kind == "cpu":
            control.set_cluster(
                a_cluster({"node-b": 2}, type="fast")
            )  # the other node leaves: its slots are free, the job goes on elsewhere
            clock.advance(1.0)
            control.acquire(life.segment_id())
    return life


def test_what_one_job_measured_on_two_types_sharpens_the_model_of_another(
    control: LedgerControl, clock: FakeClock
) -> None:
    on_two_types(control, clock)
    control.set_cluster(a_cluster({"node-b": 2, "node-c": 2}, type="fast"))
    submit(control, "pupil", slots=(2, 2))
    clock.advance(REFRESH_SECONDS + 1)
    assert the_job(control, "pupil").throughput is None  # nothing was refreshed yet: nothing is known of it
    control.reconcile([])
    model = the_job(control, "pupil").throughput
    assert model is not None
    assert model.params["slowness.cpu"] > 1.5 * model.params["slowness.fast"]
    teacher = the_job(control, "teacher")
    assert teacher.throughput == job_models(teacher.profile, teacher.limits)  # is not told its own twice


def test_what_was_measured_before_a_ledger_was_restored_still_teaches(
    control: LedgerControl, clock: FakeClock, ledger_url: str
) -> None:
    """A restored ledger goes on with epochs far above those that it holds."""
    on_two_types(control, clock)
    engine = create_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(text(NEW_EPOCHS))
    engine.dispose()
    control.set_cluster(a_cluster({"node-b": 2, "node-c": 2}, type="fast"))
    assert submit(control, "pupil", slots=(2, 2)).start().epoch > 1_000_000
    clock.advance(REFRESH_SECONDS + 1)
    control.reconcile([])
    assert the_job(control, "pupil").throughput is not None


def test_a_decision_learns_by_itself_only_where_nobody_reconciles(
    control: LedgerControl, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(
        "elastic_core.control.scheduling.predicting.predictors._experience", lambda tx: asked.append(tx.now)
    )
    control.snapshot()
    for _ in range(10):
        clock.advance(REFRESH_SECONDS - 1)
        control.reconcile([])
        control.snapshot()
    assert len(asked) <= 6
    clock.advance(STALE_SECONDS + 1)
    before = len(asked)
    control.snapshot()
    control.snapshot()
    assert len(asked) == before + 1


def test_with_predictors_off_nobody_is_classified_and_no_type_is_known_from_others(
    ledger_url: str, tmp_path: Path, clock: FakeClock, learnt_from_tasks: bytes
) -> None:
    control = a_control(ledger_url, tmp_path, clock, use_predictors=False)
    control.set_cluster(a_cluster())
    put(control, learnt_from_tasks)
    on_two_types(control, clock)
    submit(control, "pupil", slots=(2, 2))
    clock.advance(REFRESH_SECONDS + 1)
    control.reconcile([])
    pupil = the_job(control, "pupil")
    assert (pupil.predictable, pupil.expected_samples) == (None, None)
    assert pupil.throughput is None
    control.close()


def test_without_history_an_open_job_is_forecast_by_the_stated_prior_and_then_by_its_curve(
    control: LedgerControl, clock: FakeClock
) -> None:
    life = submit(control, "job-a")
    blind = the_job(control, "job-a").work_forecast
    report(control, life, falls(Random(77))[:20])
    clock.advance(CLASS_SECONDS + 1)
    control.reconcile([])
    seeing = the_job(control, "job-a").work_forecast
    assert blind is not None
    assert seeing is not None
    assert (blind.source, seeing.source) == ("prior", "loss curve")
    assert blind.totals[-1] == UNTIL["samples"]
    assert seeing.totals[blind.probabilities.index(0.5)] < 0.5 * blind.totals[blind.probabilities.index(0.5)]


def test_progress_since_a_forecast_leaves_it_as_it_was_and_does_not_look_like_an_end(control: LedgerControl) -> None:
    life = submit(control, "job-a")
    order, told = life.start(), the_job(control, "job-a").work_forecast
    assert told is not None
    control.trainer(order.token).heartbeat(a_beat(step=5_000))
    ahead = the_job(control, "job-a")
    assert ahead.done_samples == 50_000 > told.totals[0]
    assert ahead.work_forecast == told
    left = remaining_work([ahead], History(), np.ones(1)).quantiles[0]
    assert left[PROBABILITIES >= 0.05].min() > 100.0, "nobody said that it ends at once"


@pytest.mark.nightly
def test_imported_history_is_learnt_from_and_known_runs_stay_as_they_are(
    control: LedgerControl, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lessons, "KINDS", ("logistic regression",))
    monkeypatch.setattr(refit, "FORECAST_KINDS", ("quantile forest",))
    assert control.import_runs(history(60)) == 60
    assert control.import_runs([replace(history(60)[0], work=1), a_run(99)]) == 1
    known = {run.job_id: run for run in control.finished_runs(400)}
    assert len(known) == 61
    assert known["run-000"] == history(60)[0]
    assert "work: quantile forest at submission" in refit.refit_all(control, control.settings)
    submit(control, "job-a", work={"samples": 10_000, "target_loss": 0.5}, params={"learning_rate": 0.4})
    submit(control, "job-b", work={"samples": 10_000, "target_loss": 0.5}, params={"learning_rate": 0.1})
    quick, slow = (the_job(control, job_id) for job_id in ("job-a", "job-b"))
    assert quick.work_forecast is not None
    assert slow.work_forecast is not None
    assert quick.work_forecast.source == "submission"
    assert quick.work_forecast.totals[3] < 0.6 * slow.work_forecast.totals[3]
    assert quick.step_forecast is not None
    assert quick.step_forecast.seconds["cpu"][3] == pytest.approx(0.1, rel=0.05)


def test_a_cancelled_job_is_no_completed_run_and_no_finished_work_of_its_task(control: LedgerControl) -> None:
    life = submit(control, "job-a")
    report(control, life, falls(Random(1))[:10])
    assert [(run.completed, run.work_done) for run in control.finished_runs(10)] == [(False, 1000)]  # still active
    control.cancel("job-a", "enough")
    assert [(run.completed, run.work_done) for run in control.finished_runs(10)] == [(False, 1000)]
    assert control.snapshot().not_finished == ("job-a",)
