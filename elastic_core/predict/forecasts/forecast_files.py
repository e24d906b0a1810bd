"""Forecast models in one file (`predict.model_files`), which holds both, either of which may be absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sklearn

from elastic_core.errors import UserError
from elastic_core.predict import model_files
from elastic_core.predict.forecasts.forecast_weights import ForecastWeights
from elastic_core.predict.forecasts.job_features import SUBMITTED_NAMES, Vocabulary
from elastic_core.predict.forecasts.quantile_model import QuantileModel
from elastic_core.predict.forecasts.run_features import PROGRESS_NAMES
from elastic_core.predict.forecasts.step_seconds import PLACE_NAMES, StepModel
from elastic_core.predict.forecasts.total_work import WorkModel
from elastic_core.predict.forecasts.work_position import PROBABILITIES

FORMAT = 1
_COLUMNS = [*SUBMITTED_NAMES, *PROGRESS_NAMES, *PLACE_NAMES, *map(str, PROBABILITIES)]
_TRUSTED = (
    "functools.partial",
    "numpy.dtype",
    "sklearn._loss.link.IdentityLink",
    "sklearn._loss.link.Interval",
    "sklearn._loss.loss.PinballLoss",
    "sklearn.ensemble._hist_gradient_boosting.binning._BinMapper",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.tree._tree.Tree",
    "sklearn.utils.validation.check_array",
)


@dataclass(frozen=True)
class Forecasters:
    """What was learnt of this installation's jobs; None where too little was there."""

    work: WorkModel | None = None
    steps: StepModel | None = None
    weights: ForecastWeights = field(default_factory=ForecastWeights)  # of those of work


def save(forecasters: Forecasters, path: Path) -> None:
    """Whole or not at all: written beside and renamed."""
    work, steps = forecasters.work, forecasters.steps
    content: dict[str, Any] = {"format": FORMAT, "scikit_learn": sklearn.__version__, "columns": _COLUMNS}
    if work is not None:
        content["work"] = {
            "vocabulary": vocabulary_content(work.vocabulary),
            "submitted": work.submitted.content(),
            "running": work.running.content(),
        }
        content["weights"] = forecasters.weights.content()
    if steps is not None:
        content["steps"] = {
            "vocabulary": vocabulary_content(steps.vocabulary),
            "types": list(steps.types),
            "prior": list(steps.prior),
            "model": steps.model.content(),
        }
    model_files.write(content, path)


def load(path: Path) -> Forecasters:
    """Raises `UserError` for a file that holds no forecasts, types that are not trusted, or another form of them."""
    content = model_files.read(path, _TRUSTED)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} holds no forecasts of format {FORMAT}; fit them anew")
    if content["scikit_learn"] != sklearn.__version__:  # an estimator of another version may load and answer wrongly
        raise UserError(
            f"{path} was written with scikit-learn {content['scikit_learn']}, this is {sklearn.__version__}; "
            "fit the forecasts anew"
        )
    if list(content["columns"]) != _COLUMNS:
        raise UserError(f"{path} was learnt from other features than this version has; fit the forecasts anew")
    weights = ForecastWeights.of_content(content.get("weights", {}))  # a file of before they were learnt has none
    return Forecasters(_work(content.get("work")), _steps(content.get("steps")), weights)


def _work(content: Mapping[str, Any] | None) -> WorkModel | None:
    if content is None:
        return None
    return WorkModel(
        vocabulary_of(content["vocabulary"]),
        QuantileModel.of(content["submitted"]),
        QuantileModel.of(content["running"]),
    )


def _steps(content: Mapping[str, Any] | None) -> StepModel | None:
    if content is None:
        return None
    return StepModel(
        vocabulary_of(content["vocabulary"]), tuple(content["types"]), tuple(content["prior"]),
        QuantileModel.of(content["model"]),
    )  # fmt: skip


def vocabulary_content(known: Vocabulary) -> dict[str, Any]:
    return {
        "tasks": list(known.tasks),
        "numbers": list(known.numbers),
        "words": {name: list(values) for name, values in known.words.items()},
        "first_losses": dict(known.first_losses),
    }


def vocabulary_of(content: Mapping[str, Any]) -> Vocabulary:
    return Vocabulary(
        tasks=tuple(content["tasks"]),
        numbers=tuple(content["numbers"]),
        words={name: tuple(values) for name, values in content["words"].items()},
        first_losses=dict(content["first_losses"]),
    )
