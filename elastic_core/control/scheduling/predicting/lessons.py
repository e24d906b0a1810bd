"""What finished runs teach about who can be predicted: each completed one, with its losses up to several points.

The label is `predict.predictability.hindsight`'s. What a run teaches depends on itself alone, and takes longer to find
than a fit to all: whoever fits several times asks `lessons_of` once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.control.scheduling.predicting.submissions import submission_of
from elastic_core.errors import UserError
from elastic_core.protocol.records import FinishedRun

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from elastic_core.predict.forecasts.run_features import Progress
    from elastic_core.predict.predictability.predictability import Classifier

SHARES = (0.0, 0.1, 0.25, 0.5)  # of a run
KINDS = ("logistic regression", "extremely randomised trees")  # all take minutes for what these show
FOLDS = 3
SEED = 0


@dataclass(frozen=True)
class Lesson:
    """What one completed run teaches: itself first, then as if it had been shorter (`predictability.shortened`)."""

    runs: Sequence[FinishedRun]  # one for each row, at its share of `SHARES`
    predictable: Sequence[bool]
    seen: NDArray[np.float64]  # rows of `predictability.described.seen_table`


def lesson_of(run: FinishedRun) -> Lesson | None:
    """None of a run that cannot be labelled. All that a fit needs of it and that no other run has a say in."""
    label = label_of(run)
    if label is None:
        return None
    from elastic_core.predict.forecasts.run_features import Progress
    from elastic_core.predict.predictability.described import seen_table
    from elastic_core.predict.predictability.shortened import shortened

    shorter = [(short, said) for short in shortened(run) if (said := label_of(short)) is not None]
    rows = [
        (each, said, Progress.until(share * each.work_done, each.losses, each.metrics))
        for each, said in ((run, label), *shorter)
        for share in SHARES
        if share > 0.0 or each is run  # one job was submitted, however short it might have been
    ]
    seen = seen_table([each.description for each, _, _ in rows], [so_far for *_, so_far in rows])
    return Lesson([each for each, _, _ in rows], [said for _, said, _ in rows], seen)


def lessons_of(runs: Iterable[FinishedRun]) -> dict[str, Lesson]:
    """By job, of those that can be labelled."""
    return {run.job_id: lesson for run in runs if (lesson := lesson_of(run)) is not None}


def fit_classifier(lessons: Sequence[Lesson]) -> Classifier:
    """Raises `UserError` where they are too few, or all of a class."""
    if not lessons:
        raise UserError("too few to learn from: no finished job can be labelled yet")
    import numpy as np

    from elastic_core.predict.forecasts.job_features import learn_vocabulary
    from elastic_core.predict.predictability import predictability  # scikit-learn: seconds to import
    from elastic_core.predict.predictability.described import Described

    runs = [run for lesson in lessons for run in lesson.runs]
    vocabulary = learn_vocabulary([lesson.runs[0] for lesson in lessons])
    classifier, _ = predictability.fit(
        [submission_of(run.description, resubmitted=run.resubmitted) for run in runs],
        [not said for lesson in lessons for said in lesson.predictable],
        described=Described(
            vocabulary, [run.description for run in runs], np.vstack([lesson.seen for lesson in lessons])
        ),
        jobs=[owner for owner, lesson in enumerate(lessons) for _ in lesson.runs],
        seed=SEED,
        kinds=KINDS,
        folds=FOLDS,
    )
    return classifier


def label_of(run: FinishedRun) -> bool | None:
    """Whether the run was predictable in hindsight; None of one that was cut off, or reported too little.

    A target counts where the run reached it. One that went to its limit instead is judged by where its loss was then.
    """
    if not run.ended_by_itself:
        return None
    from elastic_core.predict.predictability.hindsight import was_predictable  # SciPy: not every minute, for nothing

    return was_predictable(run.losses, None if run.at_its_limit else run.description.target_loss)


def classes_of(classifier: Classifier, runs: Sequence[FinishedRun], progress: Sequence[Progress]) -> list[float]:
    """Of each, how probable it is that it can be predicted, asked as a decision asks it at this progress."""
    from elastic_core.predict.forecasts.run_features import averaged_losses

    submissions = [submission_of(run.description, resubmitted=run.resubmitted) for run in runs]
    described = classifier.describe([run.description for run in runs], progress)
    said = classifier.probability(submissions, [averaged_losses(so_far) for so_far in progress], described)
    return [float(probability) for probability in said]
