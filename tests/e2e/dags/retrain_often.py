"""Two retraining pipelines: one by a cron line, every minute, that tells a notifier; one on the data of each day."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow.sdk import BaseNotifier

from elastic_airflow.retraining.factory import retraining_dag

WORK: dict[str, Any] = {
    "entry_point": "tests.e2e.tasks_for_tests:LineTask", "work": {"epochs": 2}, "batch": {"min": 16, "max": 64},
    "slots": {"min": 1, "max": 2}, "segment": {"seconds": 600},
}  # fmt: skip


class ToFile(BaseNotifier):
    """A line of JSON for each that it is told, in the home of the installation."""

    def notify(self, context: Any) -> None:
        news = context["elastic"]
        with (Path(os.environ["ELASTIC_HOME"]) / "told.jsonl").open("a") as file:
            line = {"event": news.event, "job_id": news.job_id, "state": news.state, "links": dict(news.links)}
            file.write(json.dumps(line) + "\n")


by_minute = retraining_dag(
    "retrain_by_minute",
    {**WORK, "name": "by-minute", "params": {"samples": 400, "milliseconds": 0.2}},
    cron="* * * * *",
    notifiers=[ToFile()],
    is_paused_upon_creation=True,
)
# The day of the interval says how many rows there are: 401 of the first of a month, 402 of the second.
by_day = retraining_dag(
    "retrain_by_day",
    {**WORK, "name": "by-day", "params": {"samples": "{{ 400 + data_interval_start.day }}", "milliseconds": 0.2}},
    cron="@daily",
    start_from="anew",
    is_paused_upon_creation=True,
)
