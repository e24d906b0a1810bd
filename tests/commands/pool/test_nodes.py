"""`elastic nodes ...` against a real control API."""

from __future__ import annotations

import getpass
import json
import time
from datetime import datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elastic_core.commands.pool.cluster_commands import app as cluster_app
from elastic_core.commands.pool.node_commands import app
from elastic_core.control.plane import LedgerControl
from elastic_core.errors import NotFound
from elastic_core.host.steady_clock import SteadyClock


def elastic(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_nodes_are_listed_set_aside_and_taken_back(control: LedgerControl) -> None:
    assert elastic("list").stdout == (
        "node-a  cpu  0 of 2 slots held  in use\nnode-b  cpu  0 of 2 slots held  in use\n"
    )
    shown = elastic("set-aside", "node-a", "--reason", "its fan is broken").stdout
    assert shown.startswith("node-a  cpu  0 of 2 slots held  set aside ")
    assert shown.endswith(f" by {getpass.getuser()}@host: its fan is broken\n")
    assert control.snapshot().capacity() == {"cpu": 2}
    (_, used) = json.loads(elastic("list", "--json").stdout)
    assert (used["name"], used["set_aside_at"]) == ("node-b", None)
    assert elastic("take-back", "node-a").stdout == "node-a  cpu  0 of 2 slots held  in use\n"
    assert control.snapshot().capacity() == {"cpu": 4}


def test_until_when_a_node_is_there_is_said_with_why_it_is_set_aside(control: LedgerControl) -> None:
    before = time.time()
    shown = elastic("set-aside", "node-a", "--reason", "the machine is sold", "--minutes", "90").stdout
    (goes, _) = [node.leaves_at for node in control.nodes()]
    assert goes == pytest.approx(before + 5400.0, abs=60.0)
    at = datetime.fromtimestamp(goes).astimezone().isoformat(timespec="seconds")
    assert shown.endswith(f": the machine is sold; it goes at {at}\n")
    assert f"set aside: the machine is sold; it goes at {at}" in CliRunner().invoke(cluster_app, []).stdout


def test_a_node_goes_by_the_ledgers_clock_whatever_the_hosts_was_set_to(
    control: LedgerControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SteadyClock(tmp_path)()  # the platform was started before the jump
    monkeypatch.setattr(time, "time", lambda before=time.time: before() + 3600.0)
    elastic("set-aside", "node-a", "--reason", "the machine is sold", "--minutes", "90")
    (goes, _) = [node.leaves_at for node in control.nodes()]
    assert goes == pytest.approx(now + 5400.0, abs=60.0)


def test_a_node_that_does_not_exist_is_refused_with_those_that_do(control: LedgerControl) -> None:
    refused = elastic("take-back", "node-x").exception
    assert isinstance(refused, NotFound)
    assert "no node 'node-x'; there are: node-a, node-b" in str(refused)
    assert [node.set_aside_at for node in control.nodes()] == [None, None]
