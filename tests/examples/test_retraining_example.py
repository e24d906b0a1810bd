"""The example of a retraining pipeline is one that Airflow can read, store, and tell somebody of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.serialization.serialized_objects import DagSerialization

from elastic_airflow.notifications.job_news import KEY, Event, JobNews
from elastic_core.spec.job import parse_job_spec
from examples import retraining

FILE = Path(retraining.__file__)


@pytest.fixture
def dag(tmp_path: Path) -> Any:
    """As a team has it: the file copied among its DAGs."""
    shutil.copy(FILE, tmp_path)
    bag = DagBag(str(tmp_path))
    assert bag.import_errors == {}
    return bag.dags["retrain_digits"]


def test_it_is_a_pipeline_that_an_asset_starts(dag: Any) -> None:
    assert dag.task_ids == ["plan", "train", "evaluate", "register"]
    stored = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    assert [asset.name for _, asset in stored.timetable.asset_condition.iter_assets()] == ["digits_of_today"]


def test_its_spec_is_a_job(dag: Any) -> None:
    assert parse_job_spec(dag.get_task("plan").spec).entry_point == "examples.digits:Digits"


def test_its_mail_says_what_became_of_the_job(dag: Any) -> None:
    (notifier,) = dag.on_failure_callback.notifiers
    assert isinstance(notifier, SmtpNotifier)
    news = JobNews(event=Event.FAILED, message="job digits-1 is cancelled, and its run has failed: too dear")
    notifier.render_template_fields({KEY: news})
    assert (notifier.subject, notifier.html_content) == ("failed", news.message)


def test_it_is_as_short_as_the_guide_says() -> None:
    code = FILE.read_text().split('"""')[2]
    assert len([line for line in code.splitlines() if line]) <= 12
