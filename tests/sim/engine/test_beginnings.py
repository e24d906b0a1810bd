"""How simulated jobs begin: what policies are told of the work of those whose end nobody knows."""

from __future__ import annotations

from typing import Any

from elastic_core.domain import JobView, WorkForecast
from elastic_core.predict.forecasts.run_features import Progress
from elastic_core.predict.forecasts.unlearned import unlearned_forecasts
from elastic_core.sim.engine.engine import Options, simulate
from tests.policy.builders import nodes
from tests.predict.forecasts.builders import MOST, a_description
from tests.sim.builders import Scripted, of, sim_job

(PRIOR,) = unlearned_forecasts([a_description(0.2)], [Progress(0.0)])


def told(options: Options | None = None, **more: Any) -> list[JobView]:
    """At its arrival, at 50 s and at 100 s of a job that trains from 5 s on."""
    policy = Scripted(lambda now: {view.job_id: (1, 10) for view in now.jobs}, wake=lambda now: now.now + 50.0)
    simulate(of(sim_job("j", **more)), nodes(1, kind="a"), policy, options, fit=lambda points, limits: None)
    views = [view for now in policy.seen for view in now.jobs]
    assert [view.done_samples for view in views[:3]] == [0, 450, 950]
    return views


def test_of_a_job_of_unknown_end_policies_are_told_the_forecast_that_production_makes_without_history() -> None:
    assert {view.work_forecast for view in told(declared=False, most_samples=MOST)} == {PRIOR}


def test_as_in_production_there_is_none_of_declared_work_nor_where_the_predictors_are_off() -> None:
    off = Options(predictors=False)
    silent = [*told(), *told(most_samples=MOST), *told(off, declared=False, most_samples=MOST), *told(declared=False)]
    assert {view.work_forecast for view in silent} == {None}


def test_a_workload_may_bring_a_forecast_of_its_own() -> None:
    own = WorkForecast(probabilities=(0.5,), totals=(900.0,), source="submission")
    assert {view.work_forecast for view in told(declared=False, most_samples=MOST, work_forecast=own)} == {own}
