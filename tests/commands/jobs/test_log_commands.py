"""`elastic jobs logs`, against a real control API; where workers print are run dirs that the test has written."""

from __future__ import annotations

import os
import sys
import tty
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

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
        self.lost, self.then, self.then_ranks = set[int](), list(then), list[Callable[[], object]]()

    def prints(self, origin_epoch: int, *lines: str) -> None:
        folder = RunDir.of(self.home, origin_epoch)
        folder.create()
        for rank, line in enumerate(lines):
            folder.log(rank).write_text(line)

    def ranks_with_logs(self, origin_epoch: int) -> int:
        if self.then_ranks:
            self.then_ranks.pop(0)()
        return super().ranks_with_logs(origin_epoch)

    def log_of(self, origin_epoch: int, rank: int) -> FileLog:
        if self.then:
            self.then.pop(0)()
        if origin_epoch in self.lost:
            raise InfrastructureError("the log at n1 cannot be read: ConnectError.")
        return super().log_of(origin_epoch, rank)


class Followed:
    """A job whose first attempt has printed a line on a node, and who follows it."""

    def __init__(self, control: LedgerControl, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.control, self.nodes, self._monkeypatch = control, Nodes(home), monkeypatch
        control.submit("job-a", a_spec(), FACTS)
        self.life = Life(control, control.trainer, "job-a")
        self.first = self.life.start()
        self.nodes.prints(self.first.origin_epoch, "of the first attempt\n")

    def nothing(self) -> None:
        pass

    def loses_the_first(self) -> None:
        self.nodes.lost.add(self.first.origin_epoch)

    def second_attempt(self) -> None:
        self.life.leave(self.first, "infrastructure", "its node is gone")
        self.nodes.prints(self.life.start().origin_epoch, "of the second\n")

    def over(self) -> None:
        order = self.control.launch_order(self.control.job("job-a").segment_id)
        self.control.cancel("job-a", "enough")
        self.life.leave(order, "infrastructure", "cancelled")

    def until_shown(self, word: str, *arguments: str) -> Result:
        """What `elastic jobs logs -f` says of it, which is over once a line with this word was shown."""
        shown = log_commands._print

        def then_over(text: str) -> None:
            shown(text)
            if word in text:
                self.over()

        for name, value in {"chosen": lambda _: self.nodes, "POLL_SECONDS": 0.01, "SILENT_SECONDS": 0.1,
                            "_print": then_over}.items():  # fmt: skip
            self._monkeypatch.setattr(log_commands, name, value)
        return CliRunner().invoke(WHOLE, ["jobs", "logs", "job-a", "-f", *arguments])


@pytest.fixture
def followed(control: LedgerControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Followed:
    return Followed(control, tmp_path, monkeypatch)


def test_who_follows_a_job_goes_on_with_its_next_attempt_when_a_node_is_lost(followed: Followed) -> None:
    followed.nodes.then = [followed.nothing, followed.loses_the_first, followed.nothing, followed.second_attempt]
    said = followed.until_shown("second")
    assert (said.exit_code, said.stdout) == (0, "of the first attempt\nof the second\n")
    assert said.stderr.count("the log at n1 cannot be read") == 1
    assert "attempt 2 of 2" in said.stderr


def test_who_follows_another_rank_waits_for_the_ranks_of_the_next_attempt(followed: Followed) -> None:
    followed.nodes.prints(followed.first.origin_epoch, "of rank 0\n", "of rank 1\n")
    orders = []

    def second_attempt() -> None:
        followed.life.leave(followed.first, "infrastructure", "its node is gone")
        orders.append(followed.life.start())

    def its_processes() -> None:
        followed.nodes.prints(orders[0].origin_epoch, "second, of rank 0\n", "second, of rank 1\n")

    followed.nodes.then_ranks = [followed.nothing, second_attempt, followed.nothing, its_processes]
    said = followed.until_shown("second", "--rank", "1")
    assert (said.exit_code, said.stdout) == (0, "of rank 1\nsecond, of rank 1\n")


@pytest.mark.parametrize("arguments", [(), ("--all",)], ids=["tail", "all"])
def test_who_begins_to_follow_while_the_node_is_silent_is_shown_its_lines_once_it_answers(
    followed: Followed, arguments: tuple[str, ...]
) -> None:
    followed.loses_the_first()
    followed.nodes.then = [followed.nothing, followed.nothing, followed.nodes.lost.clear]
    said = followed.until_shown("first", *arguments)
    assert (said.exit_code, said.stdout) == (0, "of the first attempt\n")
    assert said.stderr.count("the log at n1 cannot be read") == 1


def test_who_begins_to_follow_while_the_node_is_silent_goes_on_with_the_next_attempt(followed: Followed) -> None:
    followed.loses_the_first()
    followed.nodes.then = [followed.nothing, followed.second_attempt]
    said = followed.until_shown("second")
    assert (said.exit_code, said.stdout) == (0, "of the second\n")
    assert said.stderr.count("the log at n1 cannot be read") == 1
    assert "attempt 2 of 2" in said.stderr


def test_who_begins_to_follow_a_job_that_ends_on_a_silent_node_is_told_that_it_cannot_be_read(
    followed: Followed,
) -> None:
    followed.loses_the_first()
    followed.nodes.then = [followed.nothing, followed.over]
    said = followed.until_shown("nothing of it")
    assert followed.nodes.then == []  # until then it was waited for
    assert isinstance(said.exception, InfrastructureError)
    assert said.stdout == ""


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
