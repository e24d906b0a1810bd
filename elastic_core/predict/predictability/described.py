"""What the classifier is told of jobs, by name; of this platform's all that the forecasts of work are told too.

Parameters of tasks (width, optimizer, noise), the limit, the target loss, patience, where the curve so far says
that these are, and how well it has said so before: whether an end can be foreseen depends on which end it is. The
figures of `submission` are of other jobs: beside a job's description they would say the same once more, and a forest
that draws its columns would draw them twice as often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elastic_core.predict.forecasts.job_features import Vocabulary, submitted_table
from elastic_core.predict.forecasts.run_features import PROGRESS_NAMES, Progress, progress_table
from elastic_core.predict.predictability.self_check import CHECK_NAMES, check_table
from elastic_core.predict.predictability.submission import NAMES
from elastic_core.predict.work.run_so_far import RUN_NAMES
from elastic_core.protocol.records import JobDescription

Floats = NDArray[np.float64]

# Of any job. Not the number of reports: in a record it tells how long the run was.
FEATURES = (*NAMES, *RUN_NAMES[1:])
SEEN_NAMES = (*PROGRESS_NAMES, *CHECK_NAMES)


@dataclass(frozen=True)
class Described:
    """Jobs of this platform: how they were submitted, how far they are, and what may end them."""

    vocabulary: Vocabulary  # of what was learnt from
    jobs: Sequence[JobDescription]
    seen: Floats  # of `seen_table`

    def table(self) -> Floats:
        """One row a job, one column a name of `names_of`."""
        return np.hstack((submitted_table(self.jobs, self.vocabulary), self.seen))


def seen_table(jobs: Sequence[JobDescription], progress: Sequence[Progress]) -> Floats:
    """What the runs so far say, whatever else was learnt from: one row a job, one column a name of `SEEN_NAMES`."""
    return np.hstack((progress_table(jobs, progress), check_table(jobs, progress)))


def names_of(vocabulary: Vocabulary | None) -> tuple[str, ...]:
    """Of every column that a classifier with this vocabulary may use; None: of one that knows no such jobs."""
    return FEATURES if vocabulary is None else (*vocabulary.names, *SEEN_NAMES)
