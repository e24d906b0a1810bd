"""Can a job's progress be predicted? AITurbo's (HPDC 2021) classifier, told by its submission, its losses so far, and
how far off they are from what will end it.

Seven kinds of estimator are compared by cross-validation with folds grouped by submission, since a user submits the
same job again and again and a plain fold would be asked what it was told (an installation that submits hardly anything
else has its folds made of jobs). Jobs of this platform are known by all columns of `Described`; of others there
are the figures of `submission` and `run_so_far`, of which some are chosen anew in each fold, as AITurbo does. The kind
with the largest area under the ROC curve is fitted to all jobs; its out-of-fold answers calibrate its probabilities
(isotonic regression). A stored classifier is plain data and scikit-learn objects (`predict.predictability.stored`),
never a pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from elastic_core.errors import UserError
from elastic_core.predict.forecasts.job_features import Vocabulary
from elastic_core.predict.forecasts.run_features import Progress
from elastic_core.predict.predictability.described import Described, names_of, seen_table
from elastic_core.predict.predictability.feature_choice import choose
from elastic_core.predict.predictability.submission import NAMES, Floats, Submission, table, tasks_of
from elastic_core.predict.work.run_so_far import table as run_table
from elastic_core.protocol.records import JobDescription

Ints = NDArray[np.int64]
KEPT_FEATURES = 24  # of `FEATURES` that differ between jobs
MIN_JOBS = 50
LEAST_OF_A_CLASS = 10
SUBMISSIONS_A_FOLD = 3  # that differ, else folds are made of jobs
_TASK = 0  # column of the category
_TREES = ("random forest", "extremely randomised trees")
Run = Sequence[float]  # the losses that a job has reported so far
Calibration = tuple[tuple[float, ...], tuple[float, ...]]  # scores, ascending, and the probability at each
Make = Callable[[bool, int], Any]  # (is the first column the task's category, seed) -> an unfitted estimator


def _one_hot(category: bool) -> Any:
    numbers = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
    if not category:
        return numbers
    tasks = make_pipeline(
        SimpleImputer(strategy="constant", fill_value=-1.0), OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    )
    return ColumnTransformer([("task", tasks, [_TASK])], remainder=numbers)


@dataclass(frozen=True, slots=True)
class BoostingSettings:
    trees: int
    learning_rate: float
    leaves: int
    least_in_leaf: int
    l2: float


# What may be chosen from; the first is used where nothing is chosen, the second is scikit-learn's own.
SETTINGS = (
    BoostingSettings(400, 0.05, 7, 10, 1.0),
    BoostingSettings(100, 0.1, 31, 20, 0.0),
    BoostingSettings(200, 0.1, 7, 20, 1.0),
)


def _boosting(category: bool, seed: int, settings: BoostingSettings = SETTINGS[0]) -> Any:
    return HistGradientBoostingClassifier(
        max_iter=settings.trees, learning_rate=settings.learning_rate, max_leaf_nodes=settings.leaves,
        min_samples_leaf=settings.least_in_leaf, l2_regularization=settings.l2,
        categorical_features=[_TASK] if category else None, early_stopping=False, random_state=seed,
    )  # fmt: skip


def _neighbours(category: bool, seed: int) -> Any:  # noqa: ARG001 - nothing is drawn
    return make_pipeline(_one_hot(category), KNeighborsClassifier(n_neighbors=15, weights="distance"))


def _logistic(category: bool, seed: int) -> Any:
    return make_pipeline(_one_hot(category), LogisticRegression(C=0.3, max_iter=2000, random_state=seed))


def _forest(category: bool, seed: int) -> Any:
    return make_pipeline(_one_hot(category), RandomForestClassifier(200, min_samples_leaf=2, random_state=seed))


def _extra_trees(category: bool, seed: int) -> Any:
    trees = ExtraTreesClassifier(200, min_samples_leaf=3, max_features=0.3, random_state=seed)
    return make_pipeline(_one_hot(category), trees)


def _vectors(category: bool, seed: int) -> Any:
    return make_pipeline(_one_hot(category), SVC(C=3.0, random_state=seed))


def _perceptron(category: bool, seed: int) -> Any:
    network = MLPClassifier((48, 24), alpha=0.01, early_stopping=True, max_iter=200, random_state=seed)
    return make_pipeline(_one_hot(category), network)


CANDIDATES: Mapping[str, Make] = {
    "K-nearest neighbours": _neighbours,
    "logistic regression": _logistic,
    "random forest": _forest,
    "extremely randomised trees": _extra_trees,
    "support vector machine": _vectors,
    "multilayer perceptron": _perceptron,
    "gradient boosting": _boosting,
}


@dataclass(frozen=True, slots=True)
class Compared:
    """One kind of estimator under cross-validation. `scores` are its out-of-fold scores of every job."""

    name: str
    auc: float  # mean over the folds
    fold_aucs: tuple[float, ...]
    scores: Floats


@dataclass(frozen=True)
class Classifier:
    """A fitted estimator with all that is needed to ask it. Probabilities are of being predictable."""

    kind: str
    estimator: Any
    columns: tuple[int, ...]  # of `FEATURES`
    tasks: tuple[str, ...]
    calibration: Calibration  # score of being unpredictable -> its probability
    auc: float  # out of fold, grouped by submission
    num_jobs: int
    vocabulary: Vocabulary | None = None  # of one that was fitted to `Described` jobs

    @property
    def names(self) -> tuple[str, ...]:
        return names_of(self.vocabulary)

    def describe(self, jobs: Sequence[JobDescription], progress: Sequence[Progress]) -> Described | None:
        """What `probability` has to be given of these jobs; None where nothing of the kind was learnt."""
        return None if self.vocabulary is None else Described(self.vocabulary, jobs, seen_table(jobs, progress))

    def probability(
        self, submissions: Sequence[Submission], runs: Sequence[Run] | None = None, described: Described | None = None
    ) -> Floats:
        """Of each: how probable it is that its progress can be predicted; `runs` are the losses so far, which of
        described jobs are in the description."""
        assert (described is None) == (self.vocabulary is None), "as it was fitted, so it is asked: see `describe`"
        if not submissions:
            return np.empty(0)
        features = features_of(submissions, self.tasks, runs, described)[:, list(self.columns)]
        with threadpool_limits(limits=1):
            return 1.0 - _apply(self.calibration, _scores(self.estimator, features))


def fit(
    submissions: Sequence[Submission], unpredictable: Sequence[bool], *,
    runs: Sequence[Run] | None = None, described: Described | None = None, jobs: Sequence[int] | None = None,
    seed: int = 0, kinds: Sequence[str] = tuple(CANDIDATES), folds: int = 5,
) -> tuple[Classifier, list[Compared]]:  # fmt: skip
    """The best kind, fitted to all jobs and calibrated; and the comparison.

    To learn from runs under way, give every job several times, with losses up to other points of its run, and say by
    `jobs` which rows are one job. Folds are grouped by submission, or by job where hardly two submissions differ.

    Raises `UserError` for fewer than `MIN_JOBS` jobs, or fewer than ten of either class: nothing can be compared then.
    """
    labels = np.asarray(unpredictable, dtype=np.int64)
    owner = np.arange(len(labels)) if jobs is None else np.asarray(jobs, dtype=np.int64)
    once = np.unique(owner, return_index=True)[1]
    num_jobs, num_unpredictable = len(once), int(labels[once].sum())
    if num_jobs < MIN_JOBS or min(num_unpredictable, num_jobs - num_unpredictable) < LEAST_OF_A_CLASS:
        raise UserError(
            f"{num_jobs} jobs, {num_unpredictable} of them unpredictable, are too few to learn from: at least "
            f"{MIN_JOBS} are needed, and {LEAST_OF_A_CLASS} of either class"
        )
    tasks = tasks_of(submissions)
    features = features_of(submissions, tasks, runs, described)
    splits = _folds(table(submissions, tasks), labels, owner, seed, folds)
    keep = KEPT_FEATURES if described is None else None
    compared = [cross_validate(name, features, labels, splits, seed, keep) for name in kinds]
    best = max(compared, key=lambda result: result.auc)
    columns = _columns(features, labels, keep, seed)
    with threadpool_limits(limits=1):
        estimator = _make(best.name, columns, keep, seed).fit(features[:, columns], labels)
    return (
        Classifier(
            best.name,
            estimator,
            tuple(columns),
            tasks,
            _calibrate(best.scores, labels),
            best.auc,
            num_jobs,
            None if described is None else described.vocabulary,
        ),
        compared,
    )


def features_of(
    submissions: Sequence[Submission],
    tasks: Sequence[str],
    runs: Sequence[Run] | None,
    described: Described | None = None,
) -> Floats:
    """One row a job, one column a name of `names_of`."""
    if described is not None:
        return described.table()
    losses = run_table(runs if runs is not None else [()] * len(submissions))[:, 1:]
    return np.hstack((table(submissions, tasks), losses))


def _make(name: str, columns: Sequence[int], keep: int | None, seed: int) -> Any:
    """Where all columns are kept, trees are told the task by its place: a column for each would crowd out the others
    among those that a split is drawn from."""
    return CANDIDATES[name](_TASK in columns and not (keep is None and name in _TREES), seed)


def _columns(features: Floats, labels: Ints, keep: int | None, seed: int) -> list[int]:
    """The `keep` best, or all that are not the same for every job."""
    if keep is not None:
        return choose(features, labels, keep, seed)
    filled = np.nan_to_num(features, nan=-1e9)  # that a figure is missing tells something too
    return [int(i) for i in np.flatnonzero(np.ptp(filled, axis=0) > 0)]


Splits = list[tuple[Ints, Ints]]


def grouped(features: Floats, labels: Ints, seed: int = 0, folds: int = 5) -> Splits:
    """Folds that no submission is on both sides of: rows that agree in all of it stay together."""
    return _by_group(submission_groups(features), labels, seed, folds)


def submission_groups(features: Floats) -> Ints:
    """The same number for rows that agree in all of their submission."""
    filled = np.nan_to_num(features[:, : len(NAMES)], nan=-1e9)
    return np.unique(filled, axis=0, return_inverse=True)[1].ravel().astype(np.int64)


def _by_group(group: Ints, labels: Ints, seed: int, folds: int) -> Splits:
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    return list(splitter.split(np.zeros(len(labels)), labels, group))


def _folds(features: Floats, labels: Ints, owner: Ints, seed: int, folds: int) -> Splits:
    """By submission, as long as each fold can be given several and learn both classes from the others."""
    group = submission_groups(features)
    if len(np.unique(group)) >= SUBMISSIONS_A_FOLD * folds:
        splits = _by_group(group, labels, seed, folds)
        if all(len(test) and np.ptp(labels[train]) for train, test in splits):
            return splits
    return _by_group(owner, labels, seed, folds)


def plain(labels: Ints, seed: int = 0, folds: int = 5) -> Splits:
    return list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(np.zeros(len(labels)), labels))


def cross_validate(
    name: str, features: Floats, labels: Ints, splits: Splits, seed: int = 0, keep: int | None = KEPT_FEATURES
) -> Compared:
    """Choose `keep` features (None: all) and fit on each training part; score its held-out part."""
    with threadpool_limits(limits=1):  # beside training jobs more threads wait for cores, and spin while they do
        return _cross_validated(name, features, labels, splits, seed, keep)


def _cross_validated(
    name: str, features: Floats, labels: Ints, splits: Splits, seed: int, keep: int | None
) -> Compared:
    scores = np.zeros(len(labels))
    aucs = []
    for train, test in splits:
        columns = _columns(features[train], labels[train], keep, seed)
        estimator = _make(name, columns, keep, seed).fit(features[train][:, columns], labels[train])
        scores[test] = _scores(estimator, features[test][:, columns])
        if np.ptp(labels[test]):
            aucs.append(float(roc_auc_score(labels[test], scores[test])))
    return Compared(name, float(np.mean(aucs)) if aucs else 0.5, tuple(aucs), scores)


def cross_validate_nested(
    features: Floats, labels: Ints, splits: Splits, seed: int = 0, inner: int = 3
) -> tuple[Compared, list[BoostingSettings]]:
    """Gradient boosting whose settings are chosen anew on each training part, by folds of it grouped by submission:
    no held-out part has a say in how it is judged. Also the settings chosen, by fold."""
    scores = np.zeros(len(labels))
    aucs: list[float] = []
    chosen: list[BoostingSettings] = []
    with threadpool_limits(limits=1):
        for train, test in splits:
            columns = choose(features[train], labels[train], KEPT_FEATURES, seed)
            chosen_features, truth = features[train][:, columns], labels[train]
            folds = grouped(features[train], truth, seed, inner)
            inner_aucs = [
                _mean_auc(settings, _TASK in columns, chosen_features, truth, folds, seed) for settings in SETTINGS
            ]
            best = SETTINGS[int(np.argmax(inner_aucs))]
            estimator = _boosting(_TASK in columns, seed, best).fit(chosen_features, truth)
            scores[test] = _scores(estimator, features[test][:, columns])
            aucs.append(float(roc_auc_score(labels[test], scores[test])))
            chosen.append(best)
    return Compared("gradient boosting", float(np.mean(aucs)), tuple(aucs), scores), chosen


def _mean_auc(
    settings: BoostingSettings, category: bool, features: Floats, labels: Ints, splits: Splits, seed: int
) -> float:
    aucs = []
    for train, test in splits:
        estimator = _boosting(category, seed, settings).fit(features[train], labels[train])
        aucs.append(float(roc_auc_score(labels[test], _scores(estimator, features[test]))))
    return float(np.mean(aucs))


def _scores(estimator: Any, features: Floats) -> Floats:
    """Higher: less predictable. A probability where the estimator has one."""
    if hasattr(estimator, "predict_proba"):
        return np.asarray(estimator.predict_proba(features)[:, 1], dtype=np.float64)
    return np.asarray(estimator.decision_function(features), dtype=np.float64)


def _calibrate(scores: Floats, labels: Ints) -> Calibration:
    """Isotonic steps from score to probability, kept away from certainty: no job is surely predictable."""
    low = 1.0 / (len(labels) + 2.0)
    isotonic = IsotonicRegression(y_min=low, y_max=1.0 - low, out_of_bounds="clip").fit(scores, labels)
    return tuple(map(float, isotonic.X_thresholds_)), tuple(map(float, isotonic.y_thresholds_))


def _apply(calibration: Calibration, scores: Floats) -> Floats:
    known, probabilities = calibration
    answer: Floats = np.interp(scores, np.asarray(known), np.asarray(probabilities))
    return answer


def calibrated(scores: Floats, labels: Ints, splits: Splits) -> Floats:
    """Probabilities of every job, calibrated on the other folds' scores: what calibration is judged on."""
    answer = np.zeros(len(labels))
    for train, test in splits:
        answer[test] = _apply(_calibrate(scores[train], labels[train]), scores[test])
    return answer
