from __future__ import annotations

from pathlib import Path

from elastic_core.host.messages import WorkersByRank
from elastic_core.host.rundir import RunDir
from elastic_core.launch.folders import GroupFolders
from elastic_core.launch.worker_logs import followed
from elastic_core.launch.worker_logs.followed import FollowedLog
from tests.builders import settings


def a_group(home: Path) -> RunDir:
    folder = RunDir.of(home, 7)
    folder.create()
    return folder


def follower(home: Path, segment_id: str = "digits__seg_0") -> FollowedLog:
    return FollowedLog(home, GroupFolders(settings(home)).log_of, 7, "digits", segment_id)


def numbered(count: int) -> str:
    return "".join(f"line {n:03d}\n" for n in range(count))


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
    monkeypatch.setattr(followed, "TURN_BYTES", 40)
    monkeypatch.setattr(followed, "FAR_BEHIND", 200)
    a_group(tmp_path).log(0).write_text(numbered(100))
    lines = follower(tmp_path).next_lines()
    assert lines[0] == "... 864 bytes are left out here: elastic jobs logs digits --all"
    assert lines[1:] == ["line 096", "line 097", "line 098", "line 099"]


def test_a_turn_gives_so_many_lines_and_bytes_and_the_next_ones_the_rest_of_a_burst(tmp_path: Path) -> None:
    group = a_group(tmp_path)
    group.log(0).write_text("a\n" * 1200 + ("b" * 1023 + "\n") * 100)
    turns = [follower(tmp_path).next_lines() for _ in range(6)]
    assert [len(lines) for lines in turns] == [500, 500, 263, 37, 0, 0]
    assert [line for lines in turns for line in lines] == ["a"] * 1200 + ["b" * 1023] * 100
    assert all(sum(len(line) + 1 for line in lines) <= followed.TURN_BYTES for lines in turns)


def test_once_a_segment_has_been_given_enough_only_its_end_follows_and_both_are_said(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(followed, "TURN_LINES", 10)
    monkeypatch.setattr(followed, "SEGMENT_LINES", 30)
    log = a_group(tmp_path).log(0)
    log.write_text(numbered(100))
    told = [line for _ in range(6) for line in follower(tmp_path).next_lines()]
    assert told[:30] == numbered(30).splitlines()
    assert len(told) == 31
    assert told[30].startswith("... a task's log takes 30 lines or 8 MiB of what a segment prints")
    assert told[30].endswith("elastic jobs logs digits --all")
    with log.open("a") as worker:
        worker.write("KeyError: 'labels'")
    left_out, *end = follower(tmp_path).last_lines()
    assert left_out == "... 540 bytes are left out here: elastic jobs logs digits --all"
    assert end == [*numbered(100).splitlines()[90:], "KeyError: 'labels'"]
    assert follower(tmp_path).last_lines() == []


def test_bytes_are_counted_as_well_as_lines_and_each_segment_of_the_group_begins_anew(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(followed, "SEGMENT_BYTES", 2**19)
    log = a_group(tmp_path).log(0)
    log.write_text(("x" * 1023 + "\n") * 1000)
    told = [line for _ in range(20) for line in follower(tmp_path).next_lines()]
    assert len(told) == 512 + 1
    follower(tmp_path).last_lines()
    with log.open("a") as worker:
        worker.write("next\n")
    assert follower(tmp_path).next_lines() == []
    assert follower(tmp_path, "digits__seg_1").next_lines() == ["next"]


def test_at_the_end_at_most_a_turn_is_given_however_much_was_printed(tmp_path: Path) -> None:
    a_group(tmp_path).log(0).write_text("a\n" * 2**20)
    left_out, *lines = follower(tmp_path).last_lines()
    assert lines == ["a"] * followed.TURN_LINES
    assert left_out.startswith(f"... {2 * (2**20 - 500)} bytes are left out here")


def test_at_the_end_nothing_is_given_twice_where_the_last_line_is_not_ended(tmp_path: Path) -> None:
    log = a_group(tmp_path).log(0)
    log.write_text("zero\n")
    assert follower(tmp_path).next_lines() == ["zero"]
    with log.open("a") as worker:
        worker.write("one\ntwo")
    assert follower(tmp_path).last_lines() == ["one", "two"]


def test_what_was_given_of_groups_that_are_long_gone_is_forgotten(tmp_path: Path) -> None:
    a_group(tmp_path).log(0).write_text("one\n")
    assert follower(tmp_path).next_lines() == ["one"]
    (kept,) = (tmp_path / followed.FOLDER).iterdir()
    followed.forget_old(tmp_path, kept.stat().st_mtime)
    assert follower(tmp_path).next_lines() == []
    followed.forget_old(tmp_path, kept.stat().st_mtime + 1)
    assert follower(tmp_path).next_lines() == ["one"]


def test_of_a_group_of_which_nothing_is_kept_nothing_is_given(tmp_path: Path) -> None:
    log = FollowedLog(tmp_path, lambda _epoch, _rank: None, 7, "digits", "digits__seg_0")
    assert (log.next_lines(), log.last_lines()) == ([], [])
