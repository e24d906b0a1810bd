"""What is done at the host is on record with who did it: promotions, imported history, new secrets."""

from __future__ import annotations

import getpass
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from elastic_core.commands import history_commands, model_commands, services_commands
from elastic_core.control.plane import LedgerControl
from elastic_core.errors import Forbidden, UserError
from elastic_core.protocol.history_runs import write_history
from elastic_core.protocol.records import AuditRecord
from elastic_core.spec import QueueSpec
from elastic_core.track.champions import model_aliases
from tests.builders import FACTS, KeptChampions, a_cluster, a_spec
from tests.control.scheduling.predicting.test_predictors import a_run

OPERATOR = f"{getpass.getuser()}@host"


def elastic(app: typer.Typer, *arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def last(control: LedgerControl) -> AuditRecord:
    return control.audit_records(limit=1)[0]


@pytest.fixture
def champions(control: LedgerControl) -> KeptChampions:
    """Version 2 of the model is of a job of olga's queue."""
    queue = QueueSpec(name="vision", owners=("olga",))
    control.set_cluster(a_cluster().model_copy(update={"queues": (queue,)}))
    control.submit("cats-1", a_spec("cats", queue="vision"), FACTS)
    made = {"cats/2": {"uri": "ckpt/2", "metrics": {"accuracy": 0.9}, "at": 1.0}}
    control.record_results("cats-1", {"registered_versions": made})
    control._champions = kept = KeptChampions(cats=("1", "2"))
    return kept


def test_a_promotion_at_the_host_is_the_operators(control: LedgerControl, champions: KeptChampions) -> None:
    assert "cats: version 2 is the champion (before: version 1)" in elastic(model_commands.app, "promote", "cats", "2")
    assert champions.champions["cats"] == ["1", "2"]
    record = last(control)
    assert (record.actor, record.way, record.action, record.done) == (OPERATOR, "cli", "promote", True)
    assert (record.subject, record.job_id) == ("version 2 of model 'cats'", "cats-1")


def test_a_roll_back_at_the_host_is_too(
    control: LedgerControl, champions: KeptChampions, monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic(model_commands.app, "promote", "cats", "2")
    monkeypatch.setenv("ELASTIC_MLFLOW_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(model_aliases, "former_champion", lambda _registry, name: champions.champions[name][-2])
    assert "cats: version 1 is the champion" in elastic(model_commands.app, "roll-back", "cats")
    record = last(control)
    assert (record.actor, record.subject, record.detail) == (OPERATOR, "version 1 of model 'cats'", "rolled back to")


def test_in_a_users_name_it_goes_by_their_rights(control: LedgerControl, champions: KeptChampions) -> None:
    with pytest.raises(Forbidden, match="'ann' may not promote version 2 of model 'cats'"):
        elastic(model_commands.app, "promote", "cats", "2", "--as", "ann")
    assert champions.champions["cats"] == ["1"]
    assert (last(control).actor, last(control).done) == ("ann", False)
    elastic(model_commands.app, "promote", "cats", "2", "--as", "olga")
    assert last(control).actor == "olga"


def test_imported_history_is_on_record(control: LedgerControl, tmp_path: Path) -> None:
    write_history([a_run(1), a_run(2)], tmp_path / "runs.jsonl")
    elastic(history_commands.app, "import", str(tmp_path / "runs.jsonl"))
    record = last(control)
    assert (record.actor, record.action, record.subject, record.detail) == (
        OPERATOR, "import history", "the history", "2 runs",
    )  # fmt: skip


def test_new_secrets_are_on_record_and_not_what_they_are(control: LedgerControl, tmp_path: Path) -> None:
    for name in ("control", "trainer"):
        (tmp_path / "secrets" / name).chmod(0o600)
    elastic(services_commands.app, "rotate-secrets", "control")
    record = last(control)
    assert (record.actor, record.action, record.subject) == (OPERATOR, "rotate secrets", "the secrets")
    assert record.detail == "control; those before count for 24 h more"
    assert (tmp_path / "secrets" / "control").read_text().strip() not in str(control.audit_records())


def test_without_a_ledger_secrets_are_made_anew_and_it_is_said(
    control: LedgerControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (tmp_path / "secrets" / "control").read_bytes()
    monkeypatch.setenv("ELASTIC_LEDGER_URL", "postgresql+psycopg2://nobody@127.0.0.1:9/none")
    said = elastic(services_commands.app, "rotate-secrets", "control")
    assert re.search("`elastic audit` will not show this, since the ledger is not there", said)
    assert (tmp_path / "secrets" / "control").read_bytes() != before


def test_a_secret_that_is_named_twice_is_made_anew_once(control: LedgerControl, tmp_path: Path) -> None:
    (tmp_path / "secrets" / "control").chmod(0o600)
    before = (tmp_path / "secrets" / "control").read_text().strip()
    assert "new: control; those before" in elastic(services_commands.app, "rotate-secrets", "control", "control")
    assert last(control).detail == "control; those before count for 24 h more"
    assert before in (tmp_path / "secrets" / "control.before").read_text()
    again = CliRunner().invoke(services_commands.app, ["rotate-secrets", "control", "control"])
    assert isinstance(again.exception, UserError)
    assert "Rotate again after that" in str(again.exception)
