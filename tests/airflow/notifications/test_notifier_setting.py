"""The setting that names notifiers: what it finds, and what it says of what it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from elastic_airflow.notifications.notifier_setting import configured_notifiers
from elastic_airflow.notifications.run_callbacks import RunCallback
from elastic_core.commands.installation import checks
from elastic_core.commands.installation.checks import Verdict
from elastic_core.errors import UserError
from elastic_core.settings import Settings
from tests.airflow.notifications.notifiers_for_tests import Kept, kept

ROOT = Path(__file__).parents[3]
HERE = "tests.airflow.notifications.notifiers_for_tests"


def test_instances_classes_and_functions_that_make_one_are_found_in_order() -> None:
    first, second, third = configured_notifiers(Settings(notifiers=f"{HERE}:kept, {HERE}:made,{HERE}:Kept"))
    assert first is kept
    assert isinstance(second, Kept)
    assert (second.text, third.text) == ("made", kept.text)
    assert configured_notifiers(Settings()) == ()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("my_company.notify", "it must be module:object, e.g. my_company.notify:slack"),
        ("no_such_module:slack", "importing no_such_module gave ModuleNotFoundError"),
        (f"{HERE}:nothing", "has no 'nothing'"),
        (f"{HERE}:number", "which is an int; it must be a notifier of Airflow"),
        (f"{HERE}:fails", "calling it without arguments gave KeyError: 'SLACK_TOKEN'"),
        (f"{HERE}:OnlyAsync", "OnlyAsync has no method notify"),
    ],
)
def test_what_is_no_notifier_is_refused_in_words_that_name_it(path: str, why: str) -> None:
    with pytest.raises(UserError, match="ELASTIC_NOTIFIERS names") as refused:
        configured_notifiers(Settings(notifiers=path))
    assert path in str(refused.value)
    assert why in str(refused.value)


def test_the_dags_of_jobs_call_them_at_the_end_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_NOTIFIERS", f"{HERE}:kept")
    for name in ("elastic_job", "elastic_retrain"):
        dag = DagBag(str(ROOT / "dags" / f"{name}.py")).dags[name]
        for callback, succeeded in ((dag.on_success_callback, True), (dag.on_failure_callback, False)):
            assert isinstance(callback, RunCallback)
            assert (callback.notifiers, callback.succeeded) == ((kept,), succeeded)


def test_airflow_shows_what_is_wrong_with_the_setting_and_jobs_go_on_with_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ELASTIC_NOTIFIERS", f"no_such_module:slack,{HERE}:kept")
    (error,) = DagBag(str(ROOT / "dags" / "elastic_notifiers.py")).import_errors.values()
    assert "ELASTIC_NOTIFIERS names 'no_such_module:slack', and importing no_such_module gave" in error
    bag = DagBag(str(ROOT / "dags" / "elastic_job.py"))
    assert bag.import_errors == {}
    callback = bag.dags["elastic_job"].on_failure_callback
    assert isinstance(callback, RunCallback)
    assert callback.notifiers == (kept,)
    assert "importing no_such_module gave" in caplog.text


def test_a_task_of_a_job_loads_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_NOTIFIERS", f"{HERE}:kept")
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "elastic_job")
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_TASK_ID", "train")
    assert not DagBag(str(ROOT / "dags" / "elastic_job.py")).dags["elastic_job"].has_on_failure_callback


@pytest.mark.nightly
def test_the_doctor_names_them_or_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "plugins")]))
    settings = Settings(home=tmp_path, project=ROOT)
    found = checks.notifiers(settings.model_copy(update={"notifiers": f"{HERE}:kept,{HERE}:Broken"}))
    assert (found.verdict, found.says) == (Verdict.OK, "Kept, Broken")
    wrong = checks.notifiers(settings.model_copy(update={"notifiers": f"{HERE}:number"}))
    assert (wrong.verdict, "which is an int" in wrong.says) == (Verdict.FAIL, True)
    assert checks.notifiers(settings).says == "none: nobody is told how jobs end"


@pytest.mark.nightly
def test_where_nobody_is_to_be_told_the_dag_of_jobs_has_no_callback() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ELASTIC_NOTIFIERS"}
    code = (
        "from airflow.dag_processing.dagbag import DagBag; "
        f"dag = DagBag({str(ROOT / 'dags' / 'elastic_job.py')!r}).dags['elastic_job']; "
        "print(dag.has_on_success_callback, dag.has_on_failure_callback)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"
