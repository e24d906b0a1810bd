"""A champion measured again, on the held-out data of a job that would replace it.

What is compared is what is served: the champion's weights in the model that its own job's code and parameters make,
measured by that code. Only which data it is measured on is the candidate's.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.protocol.process_groups import code_of
from elastic_core.spec import JobSpec
from elastic_core.text import shortened

if TYPE_CHECKING:
    from elastic_core.protocol.records import JobStatus
    from elastic_core.protocol.service import JobRecords
    from elastic_core.settings import Settings
    from elastic_core.track.champions.judging import RegisteredVersion
    from elastic_core.track.champions.paired_test import PairedTest
    from elastic_core.track.model_registry import Measured

MOST_OF_A_FAULT = 500  # characters of it in a verdict
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChampionMeasuring:
    """`data_params`: parameters of the task that say which data, of which the champion is given the candidate's.
    `alpha`: also test both on the same samples, one by one; None: do not."""

    control: JobRecords
    settings: Settings
    candidate: JobStatus
    data_params: Collection[str] = ()
    alpha: float | None = None

    def __call__(self, holder: RegisteredVersion) -> Measured:
        """What its code refuses to measure on this data, or its store no longer holds whole, is said in `fault`: no
        retry mends that, and the champion that stays is no reason to fail the candidate's task."""
        from elastic_core.track.model_registry import Measured  # imports mlflow
        from elastic_core.train.process.evaluate import evaluate_checkpoint

        new = self._candidates_figures()
        try:
            own = self.control.job(holder.job_id)
            spec, code = on_data_of(self.candidate.spec, own.spec, self.data_params), code_of(own.results).sha256
            if differing := _differing(spec, self.candidate.spec):
                _log.info("the champion keeps its own job's parameters, which are others now: %s", differing)
            metrics = evaluate_checkpoint(self.settings, spec, holder.checkpoint_uri, holder.manifest_sha256, code)
            test = self._tested(new, spec, code, holder)
        except (UserError, CorruptCheckpoint) as fault:
            return Measured(None, fault=shortened(str(fault), MOST_OF_A_FAULT))
        _log.info("the champion, version %s, measured on the same held-out data: %s", holder.version, metrics)
        return Measured(metrics, test)

    def _candidates_figures(self) -> Sequence[float]:
        from elastic_core.train.process.evaluate import evaluate_each, of_newest

        if self.alpha is None:
            return ()
        return of_newest(self.control, self.settings, self.candidate.job_id, evaluate_each)

    def _tested(self, new: Sequence[float], spec: JobSpec, code: str, holder: RegisteredVersion) -> PairedTest | None:
        if self.alpha is None:
            return None
        from elastic_core.track.champions.paired_test import compared
        from elastic_core.train.process.evaluate import evaluate_each

        old = evaluate_each(self.settings, spec, holder.checkpoint_uri, holder.manifest_sha256, code)
        return compared(new, old, self.candidate.facts.metric_mode, self.alpha)


def on_data_of(candidate: JobSpec, own: JobSpec, data_params: Collection[str]) -> JobSpec:
    """A champion's own spec, to be measured on what a candidate is measured on: what says which data is the
    candidate's, and so is the seed, by which a task may draw the samples that it holds out."""
    kept = {name: value for name, value in own.params.items() if name not in data_params}
    data = {name: value for name, value in candidate.params.items() if name in data_params}
    return own.model_copy(update={"params": {**kept, **data}, "seed": candidate.seed})


def _differing(spec: JobSpec, candidate: JobSpec) -> str:
    """Names of the parameters in which the champion's model is another than the candidate's."""
    names = sorted({*spec.params, *candidate.params})
    return ", ".join(name for name in names if spec.params.get(name) != candidate.params.get(name))
