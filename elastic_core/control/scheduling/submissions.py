"""A job of this platform in the words of the predictability classifier: only what is known when it is submitted.

How many epochs or samples the user wrote is left out on purpose: who is asked about has declared none, and a
classifier that had learnt from declarations would have nothing to go by.
"""

from __future__ import annotations

from math import nan
from typing import Any

from elastic_core.domain import CPU
from elastic_core.predict.predictability.submission import Submission
from elastic_core.protocol.records import JobFacts
from elastic_core.spec import JobSpec

LEARNING_RATES = ("learning_rate", "lr")  # what tasks call it among their parameters


def submission_of(spec: JobSpec, facts: JobFacts, *, resubmitted: bool) -> Submission:
    limits = spec.limits()
    return Submission(
        task=spec.entry_point,
        workers=limits.requested_slots,
        steps=facts.dataset_samples / limits.requested_batch,
        batch=limits.requested_batch,
        learning_rate=next((_number(spec.params[name]) for name in LEARNING_RATES if name in spec.params), nan),
        gpus=nan if not limits.types else float(limits.types[0] != CPU),
        resubmitted=float(resubmitted),
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else nan
