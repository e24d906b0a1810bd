"""Retrain where the data has drifted: the sample of now against the one that the champion's training left.

`sample` is the team's: it gives rows of the features that count, e.g. of the last day. It is asked once a run, before
the training. What it gives is kept beside the installation's state as Parquet, under the job's id once one was trained.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from elastic_airflow.access.handed import Handed
from elastic_airflow.operators import ElasticOperator
from elastic_airflow.retraining.drift_tests import column_tests, drifted
from elastic_airflow.retraining.plan import given_spec, parsed
from elastic_core.settings import Settings

if TYPE_CHECKING:
    from pandas import DataFrame

FOLDER = "data_samples"
MOST_ROWS = 10_000
UNTRAINED_SECONDS = 30 * 86400.0  # that the sample of a run which trained nothing is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """`sample(start, end)`: a table of features, one row a sample, of the data interval (None, None where a run has
    none). `alpha`: see `drift_tests`."""

    sample: Callable[[datetime | None, datetime | None], DataFrame]
    alpha: float = 0.01


class DriftOperator(ElasticOperator):
    """Skips the rest of the run where nothing has drifted. Returns the columns that have, most telling first.

    Trains where there is no champion, or nothing is known of what it was trained on.
    """

    template_fields: Sequence[str] = ("spec",)

    def __init__(self, *, drift: Drift, spec: Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.drift, self.spec = drift, spec

    def execute(self, context: Any) -> list[str]:
        now = sample_of(self.drift, context)
        _forget_untrained()
        keep(now, sample_of_run(context))
        then = self._then(context)
        if then is None:
            return []
        try:
            found = drifted(then, now, self.drift.alpha)
        except ValueError as error:
            raise AirflowFailException(f"drift cannot be told: {error}") from error
        if not found:
            nearest = next(iter(column_tests(then, now)), None)
            raise AirflowSkipException(f"nothing has drifted (alpha {self.drift.alpha}); nearest to it is {nearest}")
        self.log.info("drifted: %s", ", ".join(map(str, found)))
        return [str(test) for test in found]

    def _then(self, context: Any) -> DataFrame | None:
        from elastic_core.track import model_registry  # imports mlflow

        spec = parsed(context["params"].get("spec") or given_spec(self.spec))
        name = spec.registered_model or spec.name
        champion = model_registry.champion(self.control(), Settings(), name)
        if champion is None or not champion.job_id:
            self.log.info("model %s has no champion that the ledger knows: it is trained", name)
            return None
        path = kept_sample(champion.job_id)
        if not path.exists():
            self.log.info("no sample was kept of what the champion, job %s, was trained on: it is trained", path.stem)
            return None
        import pandas

        return pandas.read_parquet(path)


class RememberDataOperator(ElasticOperator):
    """Keeps what `DriftOperator` saw at the beginning of the run as the sample of what a job was trained on.

    `job_id` is templated.
    """

    template_fields: Sequence[str] = ("job_id",)

    def __init__(self, *, job_id: str | Handed, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job_id = job_id

    def execute(self, context: Any) -> None:
        seen, kept = sample_of_run(context), kept_sample(self.job_id)
        if seen.exists():
            seen.replace(kept)
        elif not kept.exists():  # else this task did so before it was cut off
            raise AirflowFailException(
                f"the sample that this run took before its training is gone ({seen}): the next run could not tell "
                f"whether the data has drifted from it. Clear the run's first task, `drift`."
            )


def sample_of(drift: Drift, context: Any) -> DataFrame:
    """At most `MOST_ROWS` rows, drawn alike each time."""
    table = drift.sample(context.get("data_interval_start"), context.get("data_interval_end"))
    return table.sample(MOST_ROWS, random_state=0) if len(table) > MOST_ROWS else table


def keep(table: DataFrame, path: Path) -> None:
    """Whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_suffix(f".{os.getpid()}.making")
    table.to_parquet(making)
    making.replace(path)


def kept_sample(job_id: str) -> Path:
    return _folder() / f"{job_id}.parquet"


def sample_of_run(context: Any) -> Path:
    """Of one that has trained nothing yet."""
    run = f"{context['dag'].dag_id}/{context['run_id']}"
    return _folder() / "of-runs" / f"{hashlib.sha256(run.encode()).hexdigest()[:32]}.parquet"


def _forget_untrained() -> None:
    for path in (_folder() / "of-runs").glob("*"):
        with suppress(FileNotFoundError):  # another pipeline's run has just moved or removed it
            if path.stat().st_mtime < time.time() - UNTRAINED_SECONDS:
                path.unlink()


def _folder() -> Path:
    return Settings().home.absolute() / FOLDER
