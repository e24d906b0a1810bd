"""What a group's exit codes and error files are taken to mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.host.exits import ExitCode
from elastic_core.host.messages import WorkerError
from elastic_core.host.rundir import RunDir
from elastic_core.launch.exit_classification import classify, log_tail, report_exit
from elastic_core.launch.workers.worker_group import GroupOutcome
from tests.disks import full_disk


def ended(
    *codes: int, order: list[int] | None = None, killed: set[int] = frozenset(), grace: float | None = None
) -> GroupOutcome:
    return GroupOutcome(dict(enumerate(codes)), order or list(range(len(codes))), set(killed), grace)


CASES = [
    ("all ended well", ended(0, 0), "boundary", ""),
    ("a user's exception outweighs a signal", ended(-9, 10, 11), "user_error", "KeyError: 'x'"),
    (
        "a signal outweighs those who lost the connection first",
        ended(11, -9, order=[0, 1]),
        "infrastructure",
        "rank 1 was killed by SIGKILL",
    ),
    (
        "the first fault counts",
        ended(11, 3, order=[1, 0]),
        "infrastructure",
        "rank 1 ended with exit code 3: KeyError: 'x'",
    ),
    (
        "one was killed by us because another failed",
        ended(3, -9, killed={1}),
        "infrastructure",
        "rank 0 ended with exit code 3",
    ),
    ("diverged on every rank", ended(13, 13), "diverged", "training diverged, and no rank said how"),
    ("diverged, and the others lost it", ended(11, 13, order=[0, 1]), "diverged", "training diverged"),
    ("a user's exception beside it", ended(13, 10), "user_error", "KeyError: 'x'"),
    ("fenced", ended(12, 12), "stopped", "stopped without a commit"),
    ("asked to stop before it could listen", ended(-15, -15, grace=5.0), "stopped", "stopped without a commit"),
    ("a SIGTERM that is not ours", ended(0, -15), "infrastructure", "rank 1 was killed by SIGTERM"),
    (
        "did not stop in time",
        ended(0, -9, killed={1}, grace=5.0),
        "stopped",
        "rank 1 did not end within 5 s of being asked to; killed",
    ),
    ("a crash while stopping", ended(-11, 0, grace=5.0), "infrastructure", "rank 0 was killed by SIGSEGV"),
    ("an unknown signal", ended(-64), "infrastructure", "rank 0 was killed by SIGRTMAX"),
]


@pytest.mark.parametrize(("group", "want_kind", "want_error"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_verdict(group: GroupOutcome, want_kind: str, want_error: str) -> None:
    report = classify(group, {1: "KeyError: 'x'"}, {})
    assert report.kind == want_kind
    assert report.error.startswith(want_error)
    assert report.exit_codes == tuple(group.codes.values())


def test_an_agent_that_failed_says_why() -> None:
    report = classify(GroupOutcome({0: 0}, [0], set(), None, "the agent failed: no space left"), {}, {})
    assert (report.kind, report.error) == ("infrastructure", "the agent failed: no space left")


@given(
    codes=st.lists(st.sampled_from([0, 10, 11, 12, 1, -9, -11, -15]), min_size=1, max_size=5),
    data=st.data(),
    grace=st.sampled_from([None, 5.0]),
)
def test_only_a_group_whose_every_rank_ended_well_reached_a_boundary(
    codes: list[int], data: st.DataObject, grace: float | None
) -> None:
    order = data.draw(st.permutations(range(len(codes))))
    killed = {rank for rank, code in enumerate(codes) if code == -9 and data.draw(st.booleans())}
    report = classify(GroupOutcome(dict(enumerate(codes)), list(order), killed, grace), {}, {})
    assert (report.kind == "boundary") == (set(codes) == {0})
    assert (report.kind == "user_error") == (10 in codes)
    if report.kind == "infrastructure":
        assert set(codes) - {0, 12}
    if not killed and {1, 11, -9, -11} & set(codes) and 10 not in codes:
        assert report.kind == "infrastructure"


def test_the_report_carries_the_user_error_and_the_end_of_that_ranks_log(tmp_path: Path) -> None:
    folder = RunDir.of(tmp_path, 1)
    folder.create()
    folder.log(1).write_text("\n".join(f"line {i}" for i in range(1000)))
    folder.write(WorkerError("ValueError: too big", "..."), 1)
    report = report_exit(folder, ended(11, 10))
    assert report.error == "ValueError: too big"
    assert report.log_tail.splitlines()[-1] == "line 999"
    assert len(report.log_tail.splitlines()) == 30
    assert folder.exit_report() == report


def test_without_an_error_file_the_last_log_line_is_the_error(tmp_path: Path) -> None:
    folder = RunDir.of(tmp_path, 1)
    folder.create()
    folder.log(0).write_text("Traceback\nRuntimeError: at the end\n")
    assert report_exit(folder, ended(10)).error == "RuntimeError: at the end"


def test_a_broken_error_file_does_not_hold_up_the_report(tmp_path: Path) -> None:
    folder = RunDir.of(tmp_path, 1)
    folder.create()
    folder.log(0).write_text("Traceback\nRuntimeError: at the end\n")
    (folder.path / "error-rank0.json").write_text('{"error"')
    assert report_exit(folder, ended(10)).error == "RuntimeError: at the end"
    assert folder.exit_report().kind == "user_error"


def test_on_a_full_disk_the_report_is_told_without_its_file(tmp_path: Path) -> None:
    folder = RunDir.of(tmp_path, 1)
    folder.create()
    folder.write(WorkerError("ValueError: too big", "..."), 0)
    with full_disk():
        report = report_exit(folder, ended(10))
    assert (report.kind, report.error) == ("user_error", "ValueError: too big")
    assert folder.exit_report() is None


def test_the_tail_of_a_long_line_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("x" * 100_000)
    assert len(log_tail(path)) == 8192
    assert log_tail(tmp_path / "none") == ""


def test_an_error_that_no_database_stores_is_reported_all_the_same() -> None:
    outcome = GroupOutcome({0: ExitCode.USER_ERROR}, [0], set(), None)
    report = classify(outcome, {0: "ValueError: a\0b\ud800"}, {0: "binary \0 in the log"})
    assert (report.error, report.log_tail) == ("ValueError: a\ufffdb\ufffd", "binary \ufffd in the log")
