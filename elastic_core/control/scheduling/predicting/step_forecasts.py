"""What a step will take of jobs that have measured none: learnt from jobs of all tasks (`predict.forecasts`).

Decisions ask about every active job without a measurement, whether its work is declared or not, once: what was known at
its submission does not change. They ask again when the models are fitted anew or the pool has other types. Of jobs
that are not submitted the outlook asks. Models that are cut have no forecast, nor has an inexact exchange on several
slots: what is learnt from has neither. Of placed jobs the planner says what a step takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.finished import described
from elastic_core.control.ledger.tables import JobRow
from elastic_core.control.scheduling.predicting.node_sizes import fewest_nodes, sizes_by_type
from elastic_core.domain import EXACT, JobView, Limits, Node, Quantiles, Snapshot, StepForecast
from elastic_core.logs import get_logger
from elastic_core.predict.forecasts.work_position import PROBABILITIES
from elastic_core.protocol.forecasts import StepOutlook
from elastic_core.protocol.records import JobDescription

if TYPE_CHECKING:
    from elastic_core.predict.forecasts.forecast_files import Forecasters
    from elastic_core.predict.forecasts.step_seconds import StepModel

INTERVAL = 0.1, 0.5, 0.9  # probabilities of what an outlook says: low, median, high
log = get_logger(__name__)


class StepForecasts:
    """`forecasters`: those that are in force, None where nothing was learnt."""

    def __init__(self, ledger: Ledger, forecasters: Callable[[], Forecasters | None]) -> None:
        self._ledger, self._forecasters = ledger, forecasters
        self._asked: StepModel | None = None
        self._present: tuple[str, ...] = ()  # types of the pool that it was asked about
        self._said: Mapping[str, StepForecast | None] = {}

    def of_unmeasured(self, snapshot: Snapshot) -> Mapping[str, StepForecast | None]:
        """By job. Where it fails the reason is logged, and they have none."""
        unmeasured = [job for job in snapshot.jobs if not job.profile and _is_whole(job.limits)]
        if not unmeasured:  # then no model is loaded for a decision either
            return {}
        model, present = self._model(), tuple(snapshot.capacity())
        known = self._said if model is self._asked and present == self._present else {}
        said = {job.job_id: known[job.job_id] for job in unmeasured if job.job_id in known}
        new = [job for job in unmeasured if job.job_id not in said]
        try:
            said |= self._ask(new, model, present) if new else {}
        except Exception:
            log.exception("steps of jobs cannot be forecast", jobs=[job.job_id for job in new])
            said |= dict.fromkeys((job.job_id for job in new), None)
        self._asked, self._present, self._said = model, present, said
        return said

    def of_unsubmitted(self, job: JobDescription, limits: Limits, present: Iterable[str]) -> StepForecast | None:
        """Of the types that it may have, of those that are present."""
        model = self._model()
        if model is None or not _is_whole(limits):
            return None
        (said,) = model.forecasts([job], [_types(limits, present)])
        return said if said.seconds else None

    def outlooks(self, job: JobDescription, limits: Limits, nodes: Sequence[Node]) -> tuple[StepOutlook, ...]:
        """On whatever slots of one type these nodes can give it, at its base batch or a sample a slot."""
        model = self._model()
        if model is None or limits.cuts:
            return ()
        from elastic_core.predict.forecasts.step_seconds import Place

        counts = limits.slot_counts if limits.comm == EXACT else tuple(set(limits.slot_counts) & {1})
        places = [
            Place(kind, count, num_nodes, max(job.requested_batch, count))
            for kind, sizes in sizes_by_type(nodes, limits.types).items()
            for count in counts
            if (num_nodes := fewest_nodes(sizes, count))
        ]
        rows = model.seconds([job] * len(places), places)
        return tuple(
            StepOutlook(
                type=place.type, num_slots=place.num_slots, num_nodes=place.num_nodes, global_batch=place.global_batch,
                seconds=_interval(row),
            )
            for place, row in zip(places, rows, strict=True)
        )  # fmt: skip

    def _model(self) -> StepModel | None:
        forecasters = self._forecasters()
        return None if forecasters is None else forecasters.steps

    def _ask(
        self, jobs: Sequence[JobView], model: StepModel | None, present: Sequence[str]
    ) -> Mapping[str, StepForecast | None]:
        if model is None:
            return {}
        limits = {job.job_id: job.limits for job in jobs}
        descriptions = self._ledger.read(lambda tx: _descriptions(tx, list(limits)))
        types = [_types(limits[job_id], present) for job_id in descriptions]
        said = model.forecasts(list(descriptions.values()), types)
        return dict.fromkeys(limits, None) | {
            job_id: forecast if forecast.seconds else None
            for job_id, forecast in zip(descriptions, said, strict=True)
        }  # fmt: skip


def _is_whole(limits: Limits) -> bool:
    return not limits.cuts and limits.placed is None


def _types(limits: Limits, present: Iterable[str]) -> list[str]:
    return [kind for kind in present if not limits.types or kind in limits.types]


def _descriptions(tx: Tx, job_ids: Sequence[str]) -> dict[str, JobDescription]:
    return {row.id: described(row) for row in tx.session.scalars(select(JobRow).where(JobRow.id.in_(job_ids)))}


def _interval(seconds: NDArray[np.float64]) -> Quantiles:
    low, median, high = (float(np.interp(probability, PROBABILITIES, seconds)) for probability in INTERVAL)
    return low, median, high
