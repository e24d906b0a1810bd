"""A worker's output as a file that is read in parts and held to a size."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from elastic_core.launch.worker_logs.parts import hold_to, read_part

LINES = st.lists(st.text(alphabet="ab\u00e9\U0001f600 ", max_size=9).map(lambda text: text + "\n"), max_size=12)


@given(LINES, st.text(alphabet="ab", max_size=5), st.integers(40, 90))
def test_parts_one_after_the_other_are_all_that_was_printed(
    tmp_path_factory, lines: list[str], unended: str, most: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "rank0.log"
    path.write_text("".join(lines) + unended)
    after, seen = 0, ""
    while (part := read_part(path, after, most)).text:
        assert part.start == after
        assert part.text.endswith("\n") or part.end == part.size
        seen, after = seen + part.text, part.end
    assert seen == "".join(lines) + unended


def test_the_end_begins_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_text("first line\nsecond\nthird\n")
    assert read_part(path, None, 15).text == "second\nthird\n"
    assert read_part(path, None, 1000).text == path.read_text()
    assert read_part(tmp_path / "none.log", None, 10).size == 0


def test_a_part_has_so_many_lines_from_either_end_and_positions_are_bytes(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes("é one\n\xff two\rtwo\nthree\nfour\n".encode("latin-1"))
    part = read_part(path, 0, 100, 2)
    assert (part.text, part.start, part.end) == ("\ufffd one\n\ufffd two\rtwo\n", 0, 16)
    assert read_part(path, part.end, 100, 2).text == "three\nfour\n"
    part = read_part(path, None, 100, 3)
    assert (part.text, part.start, part.end) == ("\ufffd two\rtwo\nthree\nfour\n", 6, 27)
    assert read_part(path, None, 100, 4).text == read_part(path, None, 100).text


def test_a_line_that_is_not_ended_waits_for_its_end_as_long_as_there_is_something_else(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_text("whole\nhal")
    part = read_part(path, 0, 100)
    assert (part.text, part.end) == ("whole\n", 6)
    assert read_part(path, part.end, 100).text == "hal"


def test_a_file_over_its_size_lets_its_oldest_go_while_its_worker_prints_on(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    with path.open("ab", buffering=0) as worker:
        for number in range(40_000):
            worker.write(f"line {number:06d}\n".encode())
        printed = path.stat().st_size
        assert hold_to(path, 2 * printed) is False
        assert hold_to(path, 100_000) is True
        assert path.stat().st_blocks * 512 <= 100_000
        worker.write(b"and on\n")
    part = read_part(path, 0, 2 * printed)
    assert part.left_out == part.start > 0
    assert part.text.splitlines()[0].startswith("line 0")
    assert part.text.endswith("line 039999\nand on\n")
    assert part.size == printed + 7
    assert read_part(path, printed, 100).text == "and on\n"  # positions are what they were


def test_a_link_in_the_place_of_a_log_is_not_touched(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(os.urandom(200_000))
    before = precious.read_bytes()
    (tmp_path / "rank0.log").symlink_to(precious)
    try:
        hold_to(tmp_path / "rank0.log", 1000)
    except OSError:
        pass
    else:
        raise AssertionError("it followed a link")
    assert precious.read_bytes() == before
