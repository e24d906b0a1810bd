"""What `horizon` maximises at one decision, and all that it knows of the jobs for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from elastic_core.domain import JobView
from elastic_core.policy.base.options import Options
from elastic_core.policy.base.remaining_distribution import RemainingWork
from elastic_core.policy.horizon.placed_outlook import PlacedOptions
from elastic_core.policy.horizon.served_outlook import ServedOptions
from elastic_core.policy.horizon.speeds.corrected import Corrected
from elastic_core.predict.speed.throughput import Floats, Ints, StepTime


@dataclass(frozen=True)
class Problem:
    """What a decision maximises: the sum of one value a job, within the capacity of every type."""

    jobs: tuple[JobView, ...]
    options: Options
    values: Floats  # of each option (columns) to each job (rows); 0 where it may not run
    batches: Ints  # of the same shape, like
    remaining_seconds: Floats  # that the mean of what is left takes; of the shape of `values`
    noise: tuple[float | None, ...]  # gradient noise scale of each job, as far as it was measured
    num_longer: Ints  # jobs that need longer, by job
    held: Ints  # option that each job holds
    restart_seconds: Floats  # seconds of a restart of each
    resize_seconds: Floats  # seconds until each job trains at each option: in place, or by a restart
    left: RemainingWork  # of each
    times: tuple[StepTime, ...]  # model of each job's task
    values_at: Callable[[Ints], Floats]  # the values as if other options were held
    worth: Floats  # of training at each option, before any resize: by how much completion times fall a second
    lasting: Floats  # seconds that each option is expected to be held, if the job goes over to it now
    corrected: tuple[Corrected, ...]  # the model of each job's task, put right by what was measured
    placed: PlacedOptions
    served: ServedOptions
    notes: Mapping[int, str] = field(default_factory=dict)  # about the options of some jobs, for their reasons

    @property
    def job_ids(self) -> tuple[str, ...]:
        return tuple(job.job_id for job in self.jobs)
