from __future__ import annotations

from pathlib import Path

from elastic_core.host.messages import WorkersByRank
from elastic_core.host.rundir import RunDir
from elastic_core.launch.worker_logs import followed
from elastic_core.launch.worker_logs.followed import FollowedLog
from tests.builders import settings


def a_group(home: Path) -> RunDir:
    folder = RunDir.of(home, 7)
    folder.create()
    return folder


def follower(home: Path) -> FollowedLog:
    return FollowedLog(settings(home), 7)


def test_each_line_is_given_once_whoever_follows(tmp_path: Path) -> None:
    group = a_group(tmp_path)
    assert follower(tmp_path).next_lines() == []
    group.log(0).write_text("one\ntwo\n")
    assert follower(tmp_path).next_lines() == ["one", "two"]
    with group.log(0).open("a") as log:
        log.write("three\n")
    assert follower(tmp_path).next_lines() == ["three"]  # another one: the triggerer was started anew
    assert follower(tmp_path).next_lines() == []


def test_who_becomes_rank_0_is_followed_from_then_on(tmp_path: Path) -> None:
    group = a_group(tmp_path)
    group.write(WorkersByRank((0, 1)))
    group.log(0).write_text("zero\n")
    group.log(1).write_text("one\n")
    assert follower(tmp_path).next_lines() == ["zero"]
    group.write(WorkersByRank((1,)))
    assert follower(tmp_path).next_lines() == ["one"]


def test_of_a_progress_bar_the_last_state_is_given(tmp_path: Path) -> None:
    a_group(tmp_path).log(0).write_text("10 %\r20 %\r30 %\ndone\n")
    assert follower(tmp_path).next_lines() == ["30 %", "done"]


def test_who_prints_faster_than_anybody_reads_is_caught_up_with_and_it_is_said(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(followed, "MOST_BYTES", 40)
    monkeypatch.setattr(followed, "FAR_BEHIND", 200)
    a_group(tmp_path).log(0).write_text("".join(f"line {n:03d}\n" for n in range(100)))
    lines = follower(tmp_path).next_lines()
    assert lines[0].endswith("bytes are left out here: elastic jobs logs")
    assert lines[-1] == "line 099"
