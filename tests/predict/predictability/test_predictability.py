"""The classifier of predictability: learns what is there, judges honestly, stores nothing that could run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
import skops.io
from sklearn.metrics import roc_auc_score

from elastic_core.errors import UserError
from elastic_core.predict.predictability import stored
from elastic_core.predict.predictability.feature_choice import choose, score
from elastic_core.predict.predictability.predictability import (
    CANDIDATES,
    Classifier,
    Compared,
    calibrated,
    cross_validate,
    fit,
    grouped,
)
from elastic_core.predict.predictability.submission import NAMES, Submission, table, tasks_of

FAST = ("logistic regression", "gradient boosting")


def submission(rng: Random) -> Submission:
    return Submission(
        task=rng.choice(["vision", "speech", "text"]),
        workers=rng.choice([1, 2, 4]),
        epochs=rng.choice([10, 30, 50, 100]),
        steps=rng.choice([100, 500, 2000]),
        batch=rng.choice([16, 32, 64, 128]),
        learning_rate=10 ** rng.uniform(-5, -1),
        gpus=rng.choice([0, 1, 4]),
        resubmitted=float(rng.random() < 0.3),
    )


def chance(job: Submission) -> float:
    """Of being unpredictable: a large step size for the batch, more so for speech."""
    return 0.85 if job.learning_rate > 2e-4 * job.batch * (0.2 if job.task == "speech" else 1.0) else 0.05


@cache
def jobs(count: int = 500, seed: int = 1) -> tuple[tuple[Submission, ...], tuple[bool, ...]]:
    rng = Random(seed)
    made = tuple(submission(rng) for _ in range(count))
    return made, tuple(rng.random() < chance(job) for job in made)


@cache
def comparison() -> tuple[Classifier, list[Compared]]:
    return fit(*jobs(), kinds=FAST, folds=3)


def learnt() -> Classifier:
    return comparison()[0]


@cache
def small(kind: str) -> Classifier:
    """One kind, learnt from few jobs of which some have holes."""
    made, labels = jobs(160)
    holes = [replace(job, batch=np.nan, servers=np.nan) if i % 7 == 0 else job for i, job in enumerate(made)]
    return fit(holes, labels, kinds=[kind], folds=2)[0]


def test_it_tells_new_jobs_apart() -> None:
    made, labels = jobs(300, seed=2)
    assert roc_auc_score(labels, -learnt().probability(made)) > 0.85


def test_its_probabilities_mean_what_they_say() -> None:
    made, labels = jobs(1500, seed=3)
    said, unpredictable = learnt().probability(made), np.asarray(labels)
    for low, high in ((0.0, 0.5), (0.5, 1.0)):
        inside = (said >= low) & (said < high + 1e-9)
        assert said[inside].mean() == pytest.approx(1 - unpredictable[inside].mean(), abs=0.1)


def test_the_best_kind_is_kept() -> None:
    best, compared = comparison()
    assert best.kind == max(compared, key=lambda found: found.auc).name
    assert {found.name for found in compared} == set(FAST)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", CANDIDATES)
def test_every_kind_copes_with_missing_figures_and_new_tasks(kind: str) -> None:
    made, _ = jobs(160)
    answer = small(kind).probability([Submission(task="never seen"), made[0]])
    assert ((answer > 0) & (answer < 1)).all()


def test_the_same_jobs_give_the_same_classifier() -> None:
    made, _ = jobs(40, seed=5)
    again = small.__wrapped__("gradient boosting")
    assert (again.probability(made) == small("gradient boosting").probability(made)).all()


def test_no_submission_is_on_both_sides_of_a_fold() -> None:
    made, labels = jobs(120)
    features = table(made * 4, tasks_of(made))
    for train, test in grouped(features, np.asarray(labels * 4, dtype=np.int64)):
        there = {row.tobytes() for row in np.nan_to_num(features[train])}
        assert not there & {row.tobytes() for row in np.nan_to_num(features[test])}


@pytest.mark.nightly
def test_a_label_that_is_chance_is_not_learnt() -> None:
    """Every submission twice, its label drawn once: what knows the answer from the other copy would score high."""
    made, _ = jobs(120)
    labels = np.asarray([Random(i).random() < 0.4 for i in range(120)] * 2, dtype=np.int64)
    features = table(made * 2, tasks_of(made))
    found = cross_validate("gradient boosting", features, labels, grouped(features, labels))
    assert found.auc < 0.65


def test_calibration_is_judged_on_other_folds_than_it_was_made_on() -> None:
    made, labels = jobs()
    features, truth = table(made, tasks_of(made)), np.asarray(labels, dtype=np.int64)
    splits = grouped(features, truth)
    noise = np.random.default_rng(0).random(len(truth))
    assert calibrated(noise, truth, splits).std() < 0.1


def test_too_few_jobs_are_refused_in_words() -> None:
    made, labels = jobs()
    with pytest.raises(UserError, match=r"30 jobs, .* too few to learn from: at least 50"):
        fit(made[:30], labels[:30])
    with pytest.raises(UserError, match="10 of either class"):
        fit(made, [False] * len(made))
    with pytest.raises(UserError, match=r"40 jobs, .* too few"):  # of which each is given ten times
        fit(made[:400], labels[:400], jobs=[i // 10 for i in range(400)])


@pytest.mark.nightly
def test_where_everybody_submits_the_same_folds_are_made_of_jobs() -> None:
    """Told apart by their runs only, each job given with three lengths of it: no job on both sides of a fold."""
    rng, same = Random(4), [Submission(task="one")] * 240
    losses, labels, owners = [], [], []
    for job in range(80):
        slope = rng.choice([-0.01, 0.01])
        course = [1.0 + slope * k + rng.gauss(0, 0.01) for k in range(24)]
        losses += [course[:8], course[:16], course]
        labels += [slope > 0] * 3
        owners += [job] * 3
    found, _ = fit(same, labels, runs=losses, jobs=owners, kinds=["logistic regression"], folds=3)
    assert found.num_jobs == 80
    assert found.auc > 0.9
    chance = [Random(owner).random() < 0.5 for owner in owners]
    assert fit(same, chance, runs=losses, jobs=owners, kinds=["logistic regression"], folds=3)[0].auc < 0.7


# Features


def test_ratios_are_what_they_are_called() -> None:
    job = Submission(task="a", workers=2, servers=1, epochs=10, steps=100, batch=64, learning_rate=0.01, gpus=1.5)
    row = dict(zip(NAMES, table([job], ["b", "a"])[0], strict=True))
    assert row["task"] == 1.0
    assert row["log_total_samples"] == pytest.approx(np.log(64000))
    assert row["log_batch_a_worker"] == pytest.approx(np.log(32))
    assert row["all_gpus"] == 3.0
    assert np.isnan(row["memory_a_gpu"])
    assert np.isnan(table([Submission(task="c")], ["b", "a"])).all()


def test_telling_features_are_chosen_and_constant_ones_never() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    linear, bump = labels + rng.normal(0, 1, 400), np.where(labels == 1, 0, rng.choice([-3, 3], 400))
    features = np.column_stack((np.ones(400), rng.normal(0, 1, (400, 4)), linear, bump + rng.normal(0, 0.3, 400)))
    assert choose(features, labels, 2) == [5, 6]
    assert 0 not in choose(features, labels, 7)
    first = score(features, labels, list("abcdefg"))[0]
    assert first.best_place == 0
    assert first.name in "fg"


# Storing


def test_a_stored_classifier_answers_the_same(tmp_path: Path) -> None:
    path = tmp_path / "models" / "predictability.skops"
    made, _ = jobs(40, seed=6)
    stored.save(learnt(), path)
    again = stored.load(path)
    assert (again.probability(made) == learnt().probability(made)).all()
    assert replace(again, estimator=None) == replace(learnt(), estimator=None)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", CANDIDATES)
def test_every_kind_can_be_stored(kind: str, tmp_path: Path) -> None:
    made, _ = jobs(160)
    found = small(kind)
    stored.save(found, tmp_path / "one.skops")
    assert (stored.load(tmp_path / "one.skops").probability(made) == found.probability(made)).all()


class Foreign:
    """Not a type of scikit-learn or numpy."""


def test_a_file_with_types_that_are_not_trusted_is_refused_by_name(tmp_path: Path) -> None:
    skops.io.dump({"format": 1, "estimator": Foreign()}, tmp_path / "odd.skops")
    with pytest.raises(UserError, match=r"not trusted and was not loaded: .*Foreign"):
        stored.load(tmp_path / "odd.skops")


def test_a_file_of_another_scikit_learn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its estimator may load and answer wrongly."""
    stored.save(learnt(), tmp_path / "one.skops")
    monkeypatch.setattr("sklearn.__version__", "99.0")
    with pytest.raises(UserError, match=r"written with scikit-learn .*, this is 99.0; fit a new one"):
        stored.load(tmp_path / "one.skops")


def test_another_format_and_no_file_at_all_are_refused(tmp_path: Path) -> None:
    skops.io.dump({"format": 99}, tmp_path / "new.skops")
    (tmp_path / "text.skops").write_text("no zip")
    for name, words in (("new", "format 3; fit a new one"), ("text", "cannot be read"), ("none", "cannot be read")):
        with pytest.raises(UserError, match=words):
            stored.load(tmp_path / f"{name}.skops")
