"""The live benchmark's jobs are the ones that were frozen, run and simulated alike, and its verdict can say no."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.live.contenders import CONTENDERS, best_requests
from benchmarks.live.live_forecasts import coverage, errors, of_job
from benchmarks.live.live_run import mean_completion, problems
from benchmarks.live.live_workload import (
    SHORTER,
    SIZE,
    LiveWorkload,
    every_end_unknown,
    full,
    quick,
    simulated,
    unknown_ends,
)
from elastic_core.domain import WorkForecast
from elastic_core.policy import registry
from elastic_core.protocol.forecasts import DECLARED, Assumption, Forecast
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.workloads.generated_jobs import KINDS, generated

FROZEN = {"full": "506091f9bd1a", "quick": "b52c83026585"}


def test_the_jobs_are_those_that_were_frozen_before_any_policy_ran_them() -> None:
    assert {"full": full().fingerprint(), "quick": quick().fingerprint()} == FROZEN


def test_a_changed_job_makes_another_workload() -> None:
    first, *rest = full().jobs
    changed = replace(full(), jobs=(replace(first, samples=first.samples + 1), *rest))
    assert changed.fingerprint() != full().fingerprint()


def test_a_job_lasts_as_long_as_its_row_says_but_for_the_one_factor() -> None:
    for job, row in zip(full().jobs, generated(0).jobs, strict=False):
        batch, truth = KINDS[job.kind].base_batch, job.physics()
        live = job.samples / batch * truth.seconds("t4", (1,), batch, 1)[0]
        paper = row.physics.epoch_ends[-1] / batch * row.physics.seconds("t4", (1,), batch, 1)[0]
        assert live == pytest.approx(paper / SHORTER, rel=0.02, abs=batch * SIZE * 0.01)


def test_every_fourth_job_stops_at_a_loss_and_tells_nobody_how_much_work_that_is() -> None:
    loaded = full()
    stopping = {job.name for job in unknown_ends(loaded.jobs)}
    assert len(stopping) == 6
    for job in loaded.jobs:
        work = job.spec(0).work
        assert (work.target_loss is not None) == (job.name in stopping)
        assert work.samples == (4 if job.name in stopping else 1) * job.samples
    sim = {job.job_id: job.declared for job in simulated(loaded, 5.0, {}).jobs}
    assert {name for name, declared in sim.items() if not declared} == stopping
    most = {job.job_id: job.most_samples for job in simulated(loaded, 5.0, {}).jobs if job.most_samples is not None}
    assert most == {job.name: job.spec(0).work.samples for job in loaded.jobs if job.name in stopping}


def test_the_second_workload_is_of_the_same_jobs_and_tells_of_none_how_much_work_it_is() -> None:
    loaded = every_end_unknown()
    assert [replace(job, target_loss=None) for job in loaded.jobs] == [
        replace(job, target_loss=None) for job in full().jobs
    ]
    assert all(job.target_loss is not None for job in loaded.jobs)
    known = {job.name: job.target_loss for job in unknown_ends(full().jobs)}
    assert {job.name: job.target_loss for job in unknown_ends(loaded.jobs)} == known
    assert not any(job.declared for job in simulated(loaded, 5.0, {}).jobs)


def test_a_seed_changes_the_training_and_nothing_that_a_policy_sees() -> None:
    for job in full().jobs:
        one, two = job.spec(0), job.spec(1)
        assert one.limits() == two.limits()
        assert one.model_copy(update={"seed": 1}) == two


def test_the_simulator_takes_the_ends_that_a_run_found() -> None:
    loaded = quick()
    name = unknown_ends(loaded.jobs)[0].name
    found = {job.job_id: job.physics.epoch_ends[-1] for job in simulated(loaded, 5.0, {name: 777.0}).jobs}
    assert found == {job.name: 777.0 if job.name == name else job.samples for job in loaded.jobs}


def test_the_simulator_believes_what_was_forecast_of_an_unknown_end() -> None:
    loaded = quick()
    name = unknown_ends(loaded.jobs)[0].name
    told = WorkForecast(probabilities=(0.1, 0.5, 0.9), totals=(300.0, 777.0, 900.0), source="history")
    jobs = {job.job_id: (job.work_forecast, job.predictable) for job in simulated(loaded, 5.0, {}, {name: told}).jobs}
    assert jobs == {job.name: (told, 1.0) if job.name == name else (None, None) for job in loaded.jobs}


def test_the_best_request_is_no_worse_than_what_the_rows_ask_for() -> None:
    loaded = full()

    def mean(one: LiveWorkload) -> float:
        result = simulate(simulated(one, 5.0, {}), one.nodes, registry.get("fixed"), Options(noise=0.0))
        return float(result.figures()["mean_completion"])

    assert mean(CONTENDERS["fixed-at-best-request"].workload(loaded)) < mean(loaded)
    assert {job.name for job in loaded.jobs} == best_requests(loaded).keys()


def outcome(**changes: Any) -> dict[str, Any]:
    """The quick workload run without fault, but for what is changed of its first job."""
    jobs = [
        {
            "name": job.name, "state": "finished", "error": None, "airflow": "success", "samples": job.samples,
            "requested_at": 10.0, "submitted_at": 12.0, "finished_at": 40.0, "completion_seconds": 30.0,
            "reads": [{"epoch": 0, "count": job.samples, "proven": True, "every_index": True, "problem": ""}],
            "evaluation": {"held_out_loss": 3.0}, "registered": "1",
        }
        for job in quick().jobs
    ]  # fmt: skip
    return {"began": 10.0, "seconds": 100.0, "jobs": [{**jobs[0], **changes}, *jobs[1:]]}


def test_a_run_in_which_all_was_right_has_no_problems() -> None:
    assert problems(quick(), outcome()) == []


def two_epochs(**first: Any) -> list[dict[str, Any]]:
    whole = {"count": 700, "proven": True, "every_index": True, "problem": ""}
    return [{"epoch": 0, **whole, **first}, {"epoch": 1, **whole, "count": quick().jobs[0].samples - 700}]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"state": "failed", "error": "ValueError: no"}, "is failed: ValueError: no"),
        ({"airflow": "failed"}, "its run of elastic_job ended as failed"),
        ({"samples": 5}, "ended after 5 of"),
        ({"reads": two_epochs(proven=False)}, "epoch 0 is not proven to be read exactly once"),
        ({"reads": two_epochs(every_index=False)}, "epoch 0 is not proven to be read exactly once"),
        ({"reads": two_epochs(problem="2 samples were read more than once")}, "2 samples were read more than once"),
        ({"reads": two_epochs(count=699)}, "are not all recorded"),
        ({"evaluation": {}}, "was not evaluated and registered"),
        ({"registered": None}, "was not evaluated and registered"),
    ],
)
def test_whatever_is_wrong_with_a_job_is_said(changes: dict[str, Any], says: str) -> None:
    found = problems(quick(), outcome(**changes))
    assert any(says in line and line.startswith(quick().jobs[0].name) for line in found), found


def test_a_job_that_did_not_end_counts_until_the_run_did() -> None:
    assert mean_completion(outcome()) == 30.0
    assert mean_completion(outcome(finished_at=None)) == pytest.approx((5 * 30 + 100) / 6)


def a_forecast(part: float, said: float, true: float, low: float | None = None, high: float | None = None) -> Any:
    return {
        "part": part,
        "said_seconds": said,
        "true_seconds": true,
        "work_low": low,
        "work_high": high,
        "true_work": 50,
    }


def test_forecasts_are_graded_by_when_they_were_made_and_by_what_their_intervals_held() -> None:
    made = [
        a_forecast(0.0, 12, 10),
        a_forecast(0.0, 5, 10),
        a_forecast(0.5, 10, 10, 40, 60),
        a_forecast(0.5, 10, 10, 60, 70),
    ]
    assert errors(made) == [
        ("at submission", 2, pytest.approx(0.35), pytest.approx(-1.5), 10),
        ("50% of its time", 2, 0.0, 0.0, 10),
    ]
    held = coverage(made)
    assert held is not None
    assert held[:2] == (1, 2)
    assert held[2] < 0.5 < held[3]
    assert coverage(made[:2]) is None


def a_stored_forecast(at: float, **more: Any) -> Forecast:
    """Of a job that is told to need another 40 s and 200 samples, give or take a half."""
    told = {
        "at": at, "lineage": 0, "done": 10.0 * at, "work_left": (100.0, 200.0, 300.0), "work_source": "loss curve",
        "finish_at": (at + 20.0, at + 40.0, at + 60.0), "assumes": Assumption.KEEPS_SLOTS, "finish_source": "horizon",
        "policy": "horizon", "decision_id": 1, "work_decided": True, **more,
    }  # fmt: skip
    return Forecast(**told)


def test_what_is_graded_is_what_was_stored_with_decisions_and_shown() -> None:
    job = {"name": "a", "submitted_at": 100.0, "finished_at": 200.0, "samples": 1_500}
    stored = [
        a_stored_forecast(100.0, finish_at=None, assumes=None),
        a_stored_forecast(105.0, assumes=Assumption.WAITS_ITS_TURN),
        a_stored_forecast(110.0),
        a_stored_forecast(120.0),
        a_stored_forecast(160.0, work_source=DECLARED),
        a_stored_forecast(180.0, policy="fair_share"),
    ]
    found = of_job(job, stored)
    assert [(one["part"], one["said_seconds"], one["true_seconds"]) for one in found] == [
        (0.0, 40.0, 90.0),
        (0.5, 40.0, 40.0),
    ]
    assert [(one["work_low"], one["work_high"], one["true_work"]) for one in found] == [
        (1_200.0, 1_400.0, 1_500.0), (None, None, 1_500.0),
    ]  # fmt: skip
    assert [(one["work_median"], one["work_source"]) for one in found] == [(1_300.0, "loss curve"), (None, None)]
    assert coverage(found) is not None
    assert [row[1] for row in errors(found)] == [1, 1]
