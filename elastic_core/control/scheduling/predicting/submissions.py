"""A job of this platform in the words of what is learnt from jobs: only what is known when it is submitted.

The classifier is not told how many epochs or samples the user wrote: who is asked about has declared no amount, and a
classifier that had learnt from declarations would have nothing to go by. It is told how the job may end, and later how
far that is off (`predict.forecasts.run_features.end_table`). The forecasts of work are told the amount: to a job whose
end is not known it is the limit that it may reach.
"""

from __future__ import annotations

from math import nan
from typing import Any

from elastic_core.predict.forecasts.job_features import task_of
from elastic_core.predict.predictability.submission import Submission
from elastic_core.protocol.records import JobDescription

LEARNING_RATES = ("learning_rate", "lr")  # what tasks call it among their parameters


def submission_of(job: JobDescription, *, resubmitted: bool) -> Submission:
    return Submission(
        task=task_of(job),
        workers=job.requested_slots,
        steps=job.dataset_samples / job.requested_batch,
        batch=job.requested_batch,
        learning_rate=next((_number(job.params[name]) for name in LEARNING_RATES if name in job.params), nan),
        gpus=nan if job.accelerated is None else float(job.accelerated),
        resubmitted=float(resubmitted),
        has_target=float(job.target_loss is not None),
        patience=float(job.patience or 0),
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else nan
