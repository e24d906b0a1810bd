"""The corpus of short trainings: every family is a task that trains, and a run is the same on every machine."""

from __future__ import annotations

from math import isfinite
from typing import Any

import pytest

from benchmarks.corpus.families import FAMILIES, Digits, FamilyParams
from benchmarks.corpus.make import BOLD_RUNS, FACTORS, REPORTS, RUNS, drawn, train
from elastic_core.spec.entry_points import load
from elastic_core.train.task import Task


def a_run(**more: Any) -> dict[str, Any]:
    """Digits, forty steps of sixteen samples, to the end."""
    run = {**drawn(5), "family": "Digits", "params": FamilyParams().model_dump(), "batch": 16, "most_steps": 40}
    return {**run, "ends": "most", "target_loss": None, "patience": None, **more}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_a_task_that_trains(family: str) -> None:
    run = train(a_run(family=family, most_steps=16))
    assert run["steps"] == 16
    assert all(isfinite(loss) for loss in run["losses"])
    assert [at for at, _ in run["held_out"]] == list(range(1, 17))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_can_be_named_by_a_job(family: str) -> None:
    found = load(f"benchmarks.corpus.families:{family}", "benchmarks.*")
    assert issubclass(found, Task)


def test_a_run_is_drawn_from_its_number_alone() -> None:
    assert drawn(17) == drawn(17)
    assert len({str(drawn(number)) for number in range(100)}) == 100
    assert {drawn(number)["family"] for number in range(len(FAMILIES))} == set(FAMILIES)


def test_cautious_runs_learn_slowly_from_larger_batches_of_nearly_clean_labels() -> None:
    cautious = [drawn(number) for number in range(BOLD_RUNS, RUNS)]
    assert len({run["family"] for run in cautious}) == len(FAMILIES) - 1
    for run in cautious:
        params = run["params"]
        assert 3e-5 * 0.9 <= params["learning_rate"] / FACTORS[params["optimizer"]] <= 1e-3 * 1.1
        assert run["batch"] >= 64
        assert params["noise"] <= 0.1


def test_the_same_run_has_the_same_losses() -> None:
    assert train(a_run())["losses"] == train(a_run())["losses"]


def test_a_run_ends_at_its_target_and_not_before() -> None:
    run = train(
        a_run(ends="target", target_loss=1.5, most_steps=1000, params=FamilyParams(learning_rate=1e-2).model_dump())
    )
    assert run["ended"] == "target"
    assert run["steps"] < 1000
    assert run["losses"][0] > 1.5


def test_a_run_ends_when_its_held_out_loss_gets_no_better() -> None:
    hopeless = FamilyParams(learning_rate=3.0, optimizer="sgd").model_dump()
    run = train(a_run(ends="patience", patience=2, most_steps=160, params=hopeless))
    assert run["ended"] == "patience"
    metrics = [metric for _, metric in run["held_out"]]
    assert min(metrics[-2:]) >= min(metrics[:-2])


def test_reports_are_bounded_and_are_means_of_equal_stretches() -> None:
    run = train(a_run(most_steps=2 * REPORTS + 5))
    assert run["report_steps"] == 3
    assert len(run["losses"]) == (2 * REPORTS + 5) // 3


def test_noise_in_the_labels_is_in_the_training_data() -> None:
    clean, noisy = (Digits(FamilyParams(noise=noise)).dataset().tensors[1] for noise in (0.0, 0.3))
    assert 0.2 < (clean != noisy).double().mean() < 0.35
