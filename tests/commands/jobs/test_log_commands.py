"""`elastic jobs logs`, against a real control API; where workers print are run dirs that the test has written."""

from __future__ import annotations

import os
import sys
import tty
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elastic_core import cli
from elastic_core.commands.jobs import log_commands
from elastic_core.control.plane import LedgerControl
from elastic_core.errors import InfrastructureError
from elastic_core.host.rundir import RunDir
from elastic_core.launch.local import LocalLauncher
from elastic_core.launch.worker_logs.parts import FileLog
from elastic_core.settings import Settings
from tests.builders import FACTS, Life, a_commit, a_spec

WHOLE = cli.build(["jobs.jobs_commands", "checkpoints.checkpoint_commands"])


class Nodes(LocalLauncher):
    """Some of their groups' logs cannot be read. `then`: what happens at each look, one after the other."""

    def __init__(self, home: Path, *then: Callable[[], object]) -> None:
        super().__init__(Settings(home=home))
        self.lost, self.then = set[int](), list(then)

    def prints(self, origin_epoch: int, line: str) -> None:
        folder = RunDir.of(self.home, origin_epoch)
        folder.create()
        folder.log(0).write_text(line)

    def log_of(self, origin_epoch: int, rank: int) -> FileLog:
        if self.then:
            self.then.pop(0)()
        if origin_epoch in self.lost:
            raise InfrastructureError("the log at n1 cannot be read: ConnectError.")
        return super().log_of(origin_epoch, rank)


def test_who_follows_a_job_goes_on_with_its_next_attempt_when_a_node_is_lost(
    control: LedgerControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    life = Life(control, control.trainer, "job-a")
    first = life.start()
    nodes = Nodes(tmp_path)
    nodes.prints(first.origin_epoch, "of the first attempt\n")

    def second_attempt() -> None:
        life.leave(first, "infrastructure", "its node is gone")
        nodes.prints(life.start().origin_epoch, "of the second\n")

    def over() -> None:
        order = control.launch_order(control.job("job-a").segment_id)
        control.cancel("job-a", "enough")
        life.leave(order, "infrastructure", "cancelled")

    def nothing() -> None:
        pass

    nodes.then = [nothing, lambda: nodes.lost.add(first.origin_epoch), nothing, second_attempt]
    monkeypatch.setattr(log_commands, "chosen", lambda _: nodes)
    monkeypatch.setattr(log_commands, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(log_commands, "SILENT_SECONDS", 0.1)
    shown = log_commands._print

    def then_over(text: str) -> None:
        shown(text)
        if "second" in text:
            over()

    monkeypatch.setattr(log_commands, "_print", then_over)
    said = CliRunner().invoke(WHOLE, ["jobs", "logs", "job-a", "-f"])
    assert (said.exit_code, said.stdout) == (0, "of the first attempt\nof the second\n")
    assert said.stderr.count("the log at n1 cannot be read") == 1
    assert "attempt 2 of 2" in said.stderr


def test_a_terminal_gets_no_escape_sequence_of_a_job_but_colours_and_a_file_gets_all_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote = "\x1b[31mred\x1b[0m \x1b]0;mine\x07\x1b[2Jgone\rback\n"
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    with os.fdopen(theirs, "w", newline="") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        log_commands._print(wrote)
        assert os.read(ours, 1000).decode() == "\x1b[31mred\x1b[0m \ufffd]0;mine\ufffd\ufffd[2Jgone\rback\n"
    os.close(ours)
    with (tmp_path / "out").open("w", newline="") as file:
        monkeypatch.setattr(sys, "stdout", file)
        log_commands._print(wrote)
    assert (tmp_path / "out").read_bytes() == wrote.encode()


def test_what_a_job_says_of_itself_sends_no_escape_sequence_to_the_terminal(
    control: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    control.trainer(order.token).commit(a_commit(order, 1, notes=("\x1b[2Jnothing to see",)))
    control.cancel("job-a", "\x1b[8mhidden")
    for arguments in (("jobs", "show", "job-a"), ("jobs", "list")):
        said = CliRunner().invoke(WHOLE, arguments)
        assert said.exit_code == 0, said.output
        assert "\ufffd[8mhidden" in said.stdout
        assert "\x1b" not in said.stdout
        assert ("\ufffd[2Jnothing to see" in said.stdout) == ("show" in arguments)
