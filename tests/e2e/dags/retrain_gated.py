"""A retraining pipeline as a team writes one: an asset's update looks for drift, and a person approves."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from airflow.sdk import Asset, Variable

from elastic_airflow.retraining.drift_check import Drift
from elastic_airflow.retraining.factory import retraining_dag

if TYPE_CHECKING:
    from pandas import DataFrame


def rows(_start: datetime | None, _end: datetime | None) -> DataFrame:
    import numpy as np
    from pandas import DataFrame

    mean = float(Variable.get("mean_of_rows"))
    return DataFrame({"value": np.random.default_rng().normal(mean, 1.0, 400)})


dag = retraining_dag(
    "retrain_gated",
    {
        "name": "gated", "entry_point": "tests.e2e.tasks_for_tests:LineTask",
        "params": {"samples": 400, "milliseconds": 0.2}, "work": {"samples": 2_000},
        "batch": {"min": 16, "max": 64}, "slots": {"min": 1, "max": 2}, "segment": {"seconds": 600},
    },
    assets=[Asset("rows_of_today")],
    drift=Drift(sample=rows),
    approval=True,
    is_paused_upon_creation=False,
)  # fmt: skip
