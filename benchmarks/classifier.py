"""Which jobs can be predicted: the classifier on AITurbo's published jobs, and how it gains from a run's losses.

Offline, on `aiturbo/jobs.csv` (needs `ELASTIC_DATA`): features known at submission only. Every kind of estimator, in
plain 5-fold cross-validation and with folds grouped by submission, features chosen and probabilities calibrated inside
the folds. The bars are of gradient boosting under nested cross-validation: its settings are chosen on each training
part, by grouped folds of it, so that no held-out part has a say in how it is judged. Beside it, with settings fixed
(those that the product uses; they were once chosen on these very grouped folds) and with scikit-learn's own.

Online: the published jobs come with their final loss only, so the loss curves are GENERATED here. A predictable job
falls along a power law or an exponential to its published final loss, with noise; an unpredictable one stands still
and then falls, oscillates, diverges or wanders, and one in three of them looks like a predictable job until a random
point of its first 60 %. So this part says how well the features of a run tell such curves apart, and how soon; not how
often real jobs behave so. `--quick` compares the other kinds on a part of the jobs, and judges the fixed settings.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.report import Report
from elastic_core.errors import UserError
from elastic_core.predict.predictability import stored
from elastic_core.predict.predictability.described import FEATURES
from elastic_core.predict.predictability.feature_choice import score
from elastic_core.predict.predictability.predictability import (
    CANDIDATES,
    Splits,
    calibrated,
    cross_validate,
    cross_validate_nested,
    features_of,
    fit,
    grouped,
    plain,
)
from elastic_core.predict.predictability.submission import NAMES, Submission, tasks_of
from elastic_core.sim.traces.published_traces import data_folder
from elastic_core.sim.traces.trace_files import read_table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BEST = "gradient boosting"
COLUMNS = {
    "workers": "Worker", "servers": "Ps", "epochs": "Epoch", "steps": "Step", "batch": "Batch Size",
    "learning_rate": "Learning rate", "gpus": "GPU", "memory_gb": "Memory", "cpus": "CPU", "resubmitted": "Resubmit",
}  # fmt: skip
SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
REPORTS = 200  # losses of a whole run


def number(text: str) -> float:
    return float(text) if text else np.nan


def published(path: Path) -> tuple[list[Submission], Ints, Floats]:
    """(submissions, 1 where unpredictable, final losses)."""
    columns = {"Job type": str, "Predictability": int, "Loss": float, **dict.fromkeys(COLUMNS.values(), number)}
    rows = read_table(path, columns)
    jobs = [Submission(task=row["Job type"], **{key: row[name] for key, name in COLUMNS.items()}) for row in rows]
    return jobs, np.asarray([row["Predictability"] for row in rows]), np.asarray([row["Loss"] for row in rows])


def calibration_error(said: Floats, labels: Ints) -> float:
    """Expected calibration error over ten equal bins."""
    bins = np.minimum((said * 10).astype(int), 9)
    return float(sum(abs(said[bins == b].mean() - labels[bins == b].mean()) * (bins == b).mean() for b in set(bins)))


def offline(report: Report, jobs: list[Submission], labels: Ints, quick: bool) -> None:
    features = features_of(jobs, tasks_of(jobs), None)
    seeds = (0,) if quick else (0, 1)
    splits = {"plain": [plain(labels, s) for s in seeds], "grouped": [grouped(features, labels, s) for s in seeds]}
    part = np.random.default_rng(0).permutation(len(labels))[: 1500 if quick else len(labels)]
    rows = []
    for name in CANDIDATES:
        rows.append([name, *(other_kind(name, features, labels, part, manner, report) for manner in splits)])
    for manner, repeated in splits.items():
        judge(report, manner, features, labels, repeated, quick)
    report.table(f"area under the ROC curve, {len(part)} jobs", ["kind", *splits], rows)
    known = features[:, : len(NAMES)]
    ranked = score(known, labels, NAMES)[:12]
    report.figure("feature_scores", [str(feature) for feature in ranked])
    report.table(
        "the most telling features",
        ["feature", "Pearson", "Spearman", "Kendall", "impurity"],
        [[f.name, f.pearson, f.spearman, f.kendall, f.impurity] for f in ranked],
    )


def other_kind(name: str, features: Floats, labels: Ints, part: Ints, manner: str, report: Report) -> float:
    chosen, truth = features[part], labels[part]
    validated = cross_validate(name, chosen, truth, plain(truth) if manner == "plain" else grouped(chosen, truth))
    report.figure(f"auc.{manner}.{name}", validated.fold_aucs)
    return validated.auc


def judge(
    report: Report, manner: str, features: Floats, labels: Ints, repeated: list[Splits], quick: bool
) -> None:  # fmt: skip
    aucs, accuracies, errors, chosen = [], [], [], []
    fixed = [cross_validate(BEST, features, labels, splits) for splits in repeated]
    how = "settings fixed" if quick else "settings chosen inside the training part"
    for splits, plainly in zip(repeated, fixed, strict=True):
        validated, settings = (plainly, []) if quick else cross_validate_nested(features, labels, splits)
        chosen += [str(setting) for setting in settings]
        said = calibrated(validated.scores, labels, splits)
        aucs.append(validated.auc)
        accuracies.append(float(((said > 0.5) == labels).mean()))
        errors.append(calibration_error(said, labels))
    report.figure(f"best.{manner}.auc_by_seed", aucs)
    report.figure(f"best.{manner}.settings_chosen", chosen)
    report.figure(f"best.{manner}.auc_with_fixed_settings_by_seed", [result.auc for result in fixed])
    print(f"{manner} folds: AUC of {BEST}, settings fixed: {np.mean([result.auc for result in fixed]):.4f}")
    report.figure(f"best.{manner}.accuracy_by_seed", accuracies)
    majority = float(1 - labels.mean())
    want = 0.94 if manner == "plain" else 0.91
    auc, accuracy, error = np.mean(aucs), np.mean(accuracies), np.mean(errors)
    report.bar(
        f"{manner} folds: AUC of {BEST}, {how}",
        want=f">= {want}",
        got=f"{auc:.4f}",
        ok=auc >= want,
    )
    report.bar(
        f"{manner} folds: accuracy against the majority class ({majority:.3f})",
        want=f"> {majority + 0.03:.3f}", got=f"{accuracy:.3f}", ok=accuracy > majority + 0.03,
    )  # fmt: skip
    report.bar(f"{manner} folds: calibration error", want="<= 0.03", got=f"{error:.3f}", ok=error <= 0.03)


def generated_run(unpredictable: bool, final: float, rng: np.random.Generator) -> Floats:
    """Losses of a whole run. See the module: this is no measurement."""
    x = np.arange(1, REPORTS + 1) / REPORTS
    start = final + rng.uniform(0.5, 5.0)
    shape = (x + 0.02) ** -rng.uniform(0.3, 1.0) if rng.random() < 0.5 else np.exp(-x / rng.uniform(0.1, 0.5))
    smooth = final + (start - final) * (shape - shape[-1]) / (shape[0] - shape[-1])
    noise = rng.uniform(0.01, 0.15 if rng.random() < 0.1 else 0.06)
    if unpredictable:
        until = int(REPORTS * rng.uniform(0.05, 0.6)) if rng.random() < 1 / 3 else 0
        smooth[until:] = odd_course(len(smooth) - until, float(smooth[until]), start, rng)
        noise *= rng.uniform(1.0, 2.0)
    return np.maximum(smooth * np.exp(rng.normal(0, noise, REPORTS)), 1e-6)


def odd_course(count: int, begin: float, scale: float, rng: np.random.Generator) -> Floats:
    x = np.linspace(0, 1, count)
    kind = rng.integers(4)
    if kind == 0:  # stands still, then falls
        return begin * (1 - rng.uniform(0.2, 0.9) * (x > rng.uniform(0.2, 0.9)))
    if kind == 1:
        return begin * (1 - 0.3 * x + rng.uniform(0.1, 0.5) * np.sin(x * rng.uniform(6, 40)))
    if kind == 2:  # falls, then diverges
        return begin * (1 - 0.5 * x + np.maximum(x - rng.uniform(0.1, 0.7), 0) * rng.uniform(1, 5))
    return np.maximum(begin + np.cumsum(rng.normal(0, 0.03 * scale, count)), 0.05 * begin)


def online(report: Report, jobs: list[Submission], labels: Ints, losses: Floats, quick: bool) -> None:
    part = np.random.default_rng(1).permutation(len(labels))[: 1500 if quick else 4000]
    rng = np.random.default_rng(2)
    runs = [generated_run(bool(labels[i]), float(losses[i]), rng) for i in part]
    chosen, truth = [jobs[i] for i in part], labels[part]
    tasks, aucs = tasks_of(chosen), {}
    for share in SHARES[:: 2 if quick else 1]:
        seen = [run[: int(REPORTS * share)] for run in runs]
        features = features_of(chosen, tasks, seen)
        aucs[share] = cross_validate(BEST, features, truth, grouped(features, truth)).auc
    report.figure("online_auc_by_share_seen", aucs)
    report.table(
        f"AUC by the part of the run seen: {len(part)} published jobs, GENERATED loss curves",
        ["part seen", "AUC"],
        [[f"{share:.0%}", auc] for share, auc in aucs.items()],
    )
    early, ordered = aucs[0.2], list(aucs.values())
    report.bar(
        "online (generated curves): AUC with a fifth of the run seen",
        want=f">= {ordered[0]:.3f} + 0.03", got=f"{early:.3f}", ok=early >= ordered[0] + 0.03,
    )  # fmt: skip
    falls = max(a - b for a, b in pairwise(ordered))
    report.bar("online: no loss from seeing more", want="<= 0.01", got=f"{max(falls, 0):.3f}", ok=falls <= 0.01)


def storing(report: Report, jobs: list[Submission], labels: Ints) -> None:
    started = time.perf_counter()
    classifier, _ = fit(jobs, labels.astype(bool).tolist(), kinds=[BEST])
    report.figure("fit_all_seconds", time.perf_counter() - started)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictability.skops"
        stored.save(classifier, path)
        report.figure("file_bytes", path.stat().st_size)
        started = time.perf_counter()
        again = stored.load(path)
        report.figure("load_seconds", time.perf_counter() - started)
    same = bool((again.probability(jobs) == classifier.probability(jobs)).all())
    report.bar("stored with skops and loaded", want="the same answers", got="same" if same else "other", ok=same)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under a minute: other kinds and curves on fewer jobs")
    quick = parser.parse_args().quick
    report = Report("classifier", quick=quick)
    try:
        jobs, labels, losses = published(data_folder() / "aiturbo" / "jobs.csv")
    except UserError as error:
        print(error)
        return 2
    report.figure("jobs", len(jobs))
    report.figure("submissions", len(np.unique(np.nan_to_num(features_of(jobs, tasks_of(jobs), None)), axis=0)))
    report.figure("features", list(FEATURES))
    offline(report, jobs, labels, quick)
    online(report, jobs, labels, losses, quick)
    storing(report, jobs, labels)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
