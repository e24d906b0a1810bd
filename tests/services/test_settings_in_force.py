"""What is set otherwise than at the start of the services is told by name and value."""

from __future__ import annotations

from pathlib import Path

from elastic_core.services.settings_in_force import differences, record, recorded

STARTED = {"ELASTIC_HOME": "/h", "ELASTIC_POLICY": "horizon", "ELASTIC_STORE": "", "AWS_SECRET_ACCESS_KEY": "hidden"}


def test_each_difference_is_named_with_both_values(tmp_path: Path) -> None:
    record(tmp_path, STARTED)
    assert differences(tmp_path, STARTED) == []
    now = {"ELASTIC_HOME": "/h", "ELASTIC_POLICY": "sia", "ELASTIC_CLUSTER": "/c.json"}
    assert differences(tmp_path, now) == [
        "ELASTIC_CLUSTER: not set -> /c.json",
        "ELASTIC_POLICY: horizon -> sia",
        "ELASTIC_STORE: '' -> not set",
    ]


def test_nothing_is_told_where_nothing_was_recorded_or_it_cannot_be_read(tmp_path: Path) -> None:
    assert differences(tmp_path, STARTED) == []
    record(tmp_path, STARTED)
    (tmp_path / "services" / "settings.json").write_text("{")
    assert differences(tmp_path, STARTED) == []


def test_the_record_holds_settings_alone_and_is_for_this_user(tmp_path: Path) -> None:
    record(tmp_path, STARTED)
    assert recorded(tmp_path) == {"ELASTIC_POLICY": "horizon", "ELASTIC_STORE": ""}
    assert (tmp_path / "services" / "settings.json").stat().st_mode & 0o777 == 0o600
