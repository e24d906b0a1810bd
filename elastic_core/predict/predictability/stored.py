"""Classifiers in files (`predict.model_files`): a dictionary of plain data and a scikit-learn estimator."""

from __future__ import annotations

from pathlib import Path

import sklearn

from elastic_core.errors import UserError
from elastic_core.predict import model_files
from elastic_core.predict.forecasts.forecast_files import vocabulary_content, vocabulary_of
from elastic_core.predict.predictability.described import names_of
from elastic_core.predict.predictability.predictability import Classifier

FORMAT = 3
# Beyond what skops trusts by itself: numpy's and scikit-learn's own data. A `functools.partial` may only wrap what is
# trusted too, and is how histogram boosting keeps its check of the category's column.
_TRUSTED = (
    "functools.partial",
    "numpy.dtype",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.tree._tree.Tree",
    "sklearn.utils.validation.check_array",
)


def save(classifier: Classifier, path: Path) -> None:
    """Whole or not at all: written beside and renamed."""
    content = {
        "format": FORMAT,
        "scikit_learn": sklearn.__version__,
        "kind": classifier.kind,
        "estimator": classifier.estimator,
        "columns": list(classifier.columns),
        "tasks": list(classifier.tasks),
        "calibration": [list(part) for part in classifier.calibration],
        "auc": classifier.auc,
        "num_jobs": classifier.num_jobs,
        "names": list(classifier.names),
        "vocabulary": None if classifier.vocabulary is None else vocabulary_content(classifier.vocabulary),
    }
    model_files.write(content, path)


def load(path: Path) -> Classifier:
    """Raises `UserError` for a file that is no classifier, holds types that are not trusted, or is of another form."""
    content = model_files.read(path, _TRUSTED)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} is no predictability classifier of format {FORMAT}; fit a new one")
    if content["scikit_learn"] != sklearn.__version__:  # an estimator of another version may load and answer wrongly
        raise UserError(
            f"{path} was written with scikit-learn {content['scikit_learn']}, this is {sklearn.__version__}; "
            "fit a new one"
        )
    vocabulary = None if content["vocabulary"] is None else vocabulary_of(content["vocabulary"])
    if tuple(content["names"]) != names_of(vocabulary):
        raise UserError(f"{path} was learnt from other features than this version has; fit a new one")
    scores, probabilities = content["calibration"]
    return Classifier(
        kind=content["kind"],
        estimator=content["estimator"],
        columns=tuple(content["columns"]),
        tasks=tuple(content["tasks"]),
        calibration=(tuple(scores), tuple(probabilities)),
        auc=content["auc"],
        num_jobs=content["num_jobs"],
        vocabulary=vocabulary,
    )
