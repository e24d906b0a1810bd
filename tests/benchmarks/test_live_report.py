"""The live benchmark's verdict: over runs as they are kept, made here by the simulator instead of the services."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import report as reporting
from benchmarks.live import live_report, live_simulated
from benchmarks.live.contenders import CONTENDERS, SEEDS
from benchmarks.live.live_workload import full

RESTART, SUBMISSION = 4.0, 3.0
PAUSES = [{"job": "a", "since": 10.0, "until": 10.0 + RESTART, "in_place": False}]


@pytest.fixture(autouse=True)
def two_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is simulated several times over; two draws of the noise say as much of the verdict."""
    monkeypatch.setattr(live_simulated, "DRAWS", 2)


@cache
def completions(label: str) -> Mapping[str, float]:
    """Completion seconds by job, a submission included."""
    work = {job.name: job.samples for job in full().jobs}
    jobs = [{"name": name, "samples": work[name], "requested_at": 0.0, "submitted_at": SUBMISSION} for name in work]
    pauses = live_simulated.measured_pauses([{"pauses": PAUSES}])
    return live_simulated.mean_of(live_simulated.simulate_as_run(full(), {"contender": label, "jobs": jobs}, pauses))


def a_run(label: str, slower: float = 1.0, **more: Any) -> dict[str, Any]:
    work = {job.name: job.samples for job in full().jobs}
    jobs = [
        {
            "name": name, "requested_at": 0.0, "submitted_at": SUBMISSION, "finished_at": slower * seconds,
            "completion_seconds": slower * seconds, "samples": work[name], "resizes": 1, "batch_changes": 0,
            "restarts": 0,
        }
        for name, seconds in completions(label).items()
    ]  # fmt: skip
    return {
        "contender": label, "seed": 0, "began": 0.0, "seconds": 900.0, "cpu_busy": 0.5, "history": "imported",
        "commit": "0123456789ab",
        "jobs": jobs, "pauses": PAUSES, "forecasts": [], "problems": [], **more,
    }  # fmt: skip


def verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *runs: dict[str, Any], no_end_known: Sequence[dict[str, Any]] = ()
) -> dict[str, bool]:
    """Whether each bar holds."""
    monkeypatch.setattr(reporting, "OUT", tmp_path)
    both = ({(run["contender"], run["seed"]): run for run in of_one} for of_one in (runs, no_end_known))
    live_report.report(full(), *both)
    return {bar["bar"]: bar["ok"] for bar in json.loads((tmp_path / "live.json").read_text())["bars"]}


OVER_FIXED, OVER_BEST = "mean completion of horizon over fixed", "mean completion of horizon over the best other"


@pytest.mark.nightly
def test_runs_that_went_as_simulated_hold_every_bar_but_the_one_on_predictors(tmp_path, monkeypatch):
    """The simulator learns nothing across jobs, so that it is the same to it whether that is on."""
    bars = verdict(tmp_path, monkeypatch, *(a_run(label, seed=seed) for label in CONTENDERS for seed in SEEDS))
    assert [bar for bar, ok in bars.items() if not ok] == ["mean completion without predictors over with them"]
    assert sum("rank correlation" in bar for bar in bars) == 2 * len(CONTENDERS)


@pytest.mark.nightly
def test_a_slower_run_than_simulated_misses_its_bars(tmp_path, monkeypatch):
    others = [a_run(label) for label in CONTENDERS if label != "horizon"]
    bars = verdict(tmp_path, monkeypatch, a_run("horizon", slower=2.0), *others)
    assert not bars[OVER_FIXED]
    assert not bars[OVER_BEST]
    assert not bars["horizon, seed 0: simulated over live mean"]
    assert bars["horizon, seed 0: rank correlation of jobs"], "all jobs were slower alike"


def test_predictors_are_worth_what_their_absence_costs(tmp_path, monkeypatch):
    without = a_run("horizon-without-predictors", slower=1.2)
    bars = verdict(tmp_path, monkeypatch, a_run("horizon"), without)
    assert bars["mean completion without predictors over with them"]


def test_contenders_that_were_not_run_and_runs_with_faults_are_no_success(tmp_path, monkeypatch):
    bars = verdict(tmp_path, monkeypatch, a_run("horizon", history=None, problems=["job-a is failed: no"]))
    assert not bars["every contender was run with every seed"]
    assert not bars[OVER_FIXED], "nothing to compare with"
    assert not bars["every job finished, read each sample once, was registered"]
    assert not bars["the ledger had imported the corpus"]


@pytest.mark.parametrize(("slower", "holds"), [(1.2, True), (1.05, False)])
def test_what_predictors_are_worth_where_no_end_is_known_is_judged_by_the_runs_of_those_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slower: float, holds: bool
) -> None:
    ours, without = a_run("horizon"), {**a_run("horizon", slower), "contender": "horizon-without-predictors"}
    bar = "mean completion without predictors over with them, every end unknown"
    assert verdict(tmp_path, monkeypatch, ours, no_end_known=[ours, without])[bar] is holds
    assert verdict(tmp_path, monkeypatch, ours)[bar] is False, "what was not run holds no bar"
