"""What a step will take is forecast of every job that has measured none, and comes into the snapshots of decisions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.control.scheduling.predicting import refit
from elastic_core.domain import JobView, StepForecast
from elastic_core.predict.forecasts.step_seconds import StepModel
from elastic_core.spec import ClusterSpec
from elastic_core.spec.admitted_layouts import Admitted
from tests.builders import FACTS, FakeClock, Life, a_cluster, a_control, a_spec, an_observation
from tests.control.test_placed_jobs import FACTS as PLACED_FACTS
from tests.control.test_placed_jobs import a_pool, placed
from tests.predict.forecasts.builders import a_run


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("learnt") / "forecasts.skops"
    runs = [a_run(number, rate=0.1 + 0.01 * number, seconds=0.1) for number in range(40)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refit, "FORECAST_KINDS", ("quantile forest",))
        refit.refit_forecasts(runs, {}, path)
    return path.read_bytes()


@pytest.fixture
def taught(ledger_url: str, tmp_path: Path, clock: FakeClock, learnt: bytes) -> Iterator[LedgerControl]:
    """A tenth of a second a step on a CPU slot; under the default policy."""
    control = a_control(ledger_url, tmp_path, clock, policy="horizon")
    control.set_cluster(a_cluster())
    path = control.settings.forecasts_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(learnt)
    yield control
    control.close()


def submit(control: LedgerControl, job_id: str, **spec: Any) -> None:
    """And ask for slots."""
    control.submit(job_id, a_spec(**spec), replace(FACTS, layouts=Admitted(tensor=(1, 2))))
    control.acquire(f"{job_id}__seg_0")


def views(control: LedgerControl) -> dict[str, JobView]:
    return {job.job_id: job for job in control.snapshot().jobs}


def median_on_a_cpu(forecast: StepForecast | None) -> float:
    assert forecast is not None
    return forecast.seconds["cpu"][forecast.probabilities.index(0.5)]


def test_declared_or_not_whoever_has_measured_nothing_has_a_forecast_until_the_first_measurement(
    taught: LedgerControl,
) -> None:
    submit(taught, "declared")
    submit(taught, "open", work={"samples": 10_000, "target_loss": 0.5})
    assert [median_on_a_cpu(views(taught)[name].step_forecast) for name in ("declared", "open")] == pytest.approx(
        [0.1, 0.1], rel=0.05
    )
    order = Life(taught, taught.trainer, "declared").start()
    taught.trainer(order.token).observe([an_observation(1, order)])
    now = views(taught)
    assert now["declared"].profile
    assert now["declared"].step_forecast is None
    assert now["open"].step_forecast is not None


def test_none_is_made_of_slots_that_nothing_was_learnt_of_nor_of_models_that_are_cut(taught: LedgerControl) -> None:
    nodes = [{"name": "node-a", "type": "cpu", "slots": 2}, {"name": "gpus", "type": "h200", "slots": 2}]
    taught.set_cluster(ClusterSpec.model_validate({"nodes": nodes}))
    submit(taught, "plain")
    submit(taught, "cut", layouts={"tensor": [1, 2]})
    submit(taught, "elsewhere", slots={"min": 1, "max": 2, "types": ["h200"]})
    of = {name: view.step_forecast for name, view in views(taught).items()}
    assert {name: None if forecast is None else list(forecast.seconds) for name, forecast in of.items()} == {
        "plain": ["cpu"], "cut": None, "elsewhere": None,
    }  # fmt: skip


def test_of_a_placed_job_the_planner_says_what_a_step_takes(taught: LedgerControl) -> None:
    taught.set_cluster(a_pool())
    taught.submit("ctr", placed(), PLACED_FACTS)
    taught.acquire("ctr__seg_0")
    assert views(taught)["ctr"].step_forecast is None


def test_they_are_asked_for_once_and_again_when_the_pool_has_other_types(
    taught: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    seconds = StepModel.seconds
    monkeypatch.setattr(StepModel, "seconds", lambda *args: [asked.append(len(args[1])), seconds(*args)][1])
    submit(taught, "a")
    submit(taught, "b")
    first = views(taught)
    assert asked == [1, 1]  # with each decision the job that was new
    assert views(taught)["a"].step_forecast == first["a"].step_forecast
    assert asked == [1, 1]
    taught.set_cluster(a_cluster({"other": 2}, type="t4"))
    views(taught)
    assert len(asked) == 3


def test_one_that_cannot_be_made_is_asked_for_once_and_no_decision_fails_for_it(
    taught: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def breaks(*of: object) -> None:
        asked.append(of)
        raise ValueError("not one of these")

    monkeypatch.setattr(StepModel, "forecasts", breaks)
    submit(taught, "a")
    assert [views(taught)["a"].step_forecast for _ in range(2)] == [None, None]
    assert len(asked) == 1
    assert taught.explain("a").decision_id is not None


def test_a_task_that_never_ran_starts_by_its_forecast_and_says_so(taught: LedgerControl) -> None:
    """On slots that are free it starts at once; what is told of its end is at a tenth of a second a step."""
    submit(taught, "a", slots=(1, 1), work={"samples": 16_000}, batch=(16, 16))
    assert "forecast from jobs of other tasks" in taught.explain("a").reason
    (target,) = taught.decision(taught.decisions(1)[0].decision_id).plan.targets.values()
    assert target.finish_seconds is not None
    assert target.finish_seconds[1] == pytest.approx(16_000 / 16 * 0.1, rel=0.2)
