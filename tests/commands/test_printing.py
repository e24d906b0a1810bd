"""What jobs and users have written reaches the terminal of who looks at it as text, whichever command shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import elastic_core.commands
from elastic_core import cli
from elastic_core.commands.printing import Words
from elastic_core.control.plane import LedgerControl
from tests.builders import FACTS, a_spec

PARTS = ["jobs.jobs_commands", "pool.node_commands", "pool.cluster_commands", "services_commands"]


def test_text_is_shown_as_it_is_but_for_what_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    Words(highlight=False).print("node:100: [b]\x1b[2Jgone\x07", markup=False)
    assert capsys.readouterr().out == "node:100: [b]\ufffd[2Jgone\ufffd\n"


def test_reasons_and_logs_send_no_escape_sequence_to_the_terminal(control: LedgerControl, tmp_path: Path) -> None:
    control.submit("job-a", a_spec(), FACTS)
    control.pause("job-a", "\x1b[2Jlunch")
    control.set_aside_node("node-a", "\x1b[2Jbroken")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "supervisord.log").write_text("\x1b[2Jsaid a job\n")
    for said, *arguments in (
        ("lunch", "cluster"), ("broken", "cluster"), ("broken", "nodes", "list"), ("said a job", "logs", "supervisord"),
    ):  # fmt: skip
        shown = CliRunner().invoke(cli.build(PARTS), arguments, color=True)
        assert shown.exit_code == 0, shown.output
        assert f"\ufffd[2J{said}" in shown.stdout
        assert "\x1b[2J" not in shown.stdout


def test_no_command_has_a_console_that_sends_on_whatever_it_is_given() -> None:
    folder = Path(elastic_core.commands.__path__[0])
    own = [path.name for path in folder.rglob("*.py") if "rich.console" in path.read_text()]
    assert own == ["printing.py"]
