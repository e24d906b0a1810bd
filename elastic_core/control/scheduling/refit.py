"""The predictability classifier, fitted anew to what this installation's jobs turned out to be.

Called by every run of the DAG `elastic_reconcile`, in the task's own process (never on the API server's loop), and
does something at most once in `EVERY_SECONDS`. A finished job teaches with the losses up to several points of its
run, so that the classifier can be asked at any time of another's; its label is `predict.predictability.hindsight`'s.
With too few jobs, or hardly any of one class, there is no classifier, and every job's class stays unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from elastic_core.control.scheduling.submissions import submission_of
from elastic_core.errors import UserError
from elastic_core.protocol.records import FinishedRun
from elastic_core.protocol.service import JobRecords
from elastic_core.settings import Settings

EVERY_SECONDS = 3600.0
LEARNT_JOBS = 300  # the latest: tasks change, and so do their users
SHARES = (0.0, 0.1, 0.25, 0.5)  # of a run
KINDS = ("logistic regression", "random forest", "gradient boosting")  # the six take minutes for what these show
FOLDS = 3
SEED = 0


def refit_if_due(control: JobRecords, settings: Settings, now: float) -> str | None:
    """What was done, in words; None where it was too early. Raises whatever a fit raises, but for too few jobs."""
    path = settings.predictability_file()
    asked = path.with_name(f"{path.name}.asked")
    if asked.exists() and now - asked.stat().st_mtime < EVERY_SECONDS:
        return None
    asked.parent.mkdir(parents=True, exist_ok=True)
    asked.touch()  # before the work: what fails is not tried again every minute
    return refit(control.finished_runs(LEARNT_JOBS), path)


def refit(runs: Sequence[FinishedRun], path: Path) -> str:
    """Fit to these runs and put the file in the place of the one before."""
    labelled = [(run, label) for run in runs if (label := _label(run)) is not None]
    if not labelled:
        return "no predictability classifier: too few to learn from: no finished job can be labelled yet"
    from elastic_core.predict.predictability import predictability  # scikit-learn: seconds to import

    submissions, losses, unpredictable, owners = [], [], [], []
    for owner, (run, label) in enumerate(labelled):
        for share in SHARES:
            submissions.append(submission_of(run.spec, run.facts, resubmitted=run.resubmitted))
            losses.append(tuple(loss for at, loss in run.losses if at <= share * run.losses[-1][0]))
            unpredictable.append(not label)
            owners.append(owner)
    try:
        found, _ = predictability.fit(
            submissions, unpredictable, runs=losses, jobs=owners, seed=SEED, kinds=KINDS, folds=FOLDS
        )
    except UserError as error:
        return f"no predictability classifier: {error}"
    from elastic_core.predict.predictability import (
        stored,  # looks through every module that was ever imported: more seconds
    )

    stored.save(found, path)
    return (
        f"predictability: {found.kind} fitted to {found.num_jobs} finished jobs, "
        f"{sum(unpredictable) // len(SHARES)} of them unpredictable; "
        f"area under the ROC curve on jobs held out {found.auc:.2f}"
    )


def _label(run: FinishedRun) -> bool | None:
    from elastic_core.predict.predictability.hindsight import was_predictable  # SciPy: not every minute, for nothing

    return was_predictable(run.losses, run.spec.work.target_loss)
