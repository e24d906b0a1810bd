"""Words for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from elastic_core.spec.parts.job_group import GROUP_ID
from elastic_core.text import did_you_mean, figure_of_time, near_miss, plural, printable, shortened, span, stamped, tail


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3.0, "0.0 s"), (0.42, "0.4 s"), (12.0, "12 s"), (119.0, "119 s"), (180.0, "3 min"), (7140.0, "119 min"),
        (7500.0, "2 h 05 min"), (100 * 3600.0, "4 d 4 h"), (float("inf"), "-"),
    ],
)  # fmt: skip
def test_a_span_reads_as_people_say_it(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_figures_of_time_have_three_digits() -> None:
    figures = [figure_of_time(s) for s in (0.0123, 59.91, 1234.0, 7300.0, 1e6, float("nan"))]
    assert figures == ["12.3 ms", "59.9 s", "20.6 min", "2.03 h", "11.57 d", "-"]


def test_of_a_long_text_the_beginning_is_left() -> None:
    assert [shortened(text, 5) for text in ("", "12345", "123456")] == ["", "12345", "12..."]


def test_ids_that_are_made_in_one_second_are_apart_and_may_begin_those_of_a_sweep() -> None:
    now = datetime(2026, 3, 1, 12, 30, 5, tzinfo=UTC)
    ids = {stamped("n" * 48, now) for _ in range(3)}
    assert len(ids) == 3
    for made in ids:
        assert re.fullmatch(r"n{48}-20260301-123005-[0-9a-f]{4}", made)
        assert re.fullmatch(GROUP_ID, made)


def test_a_plural_counts() -> None:
    assert [plural(count, "job") for count in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]


def test_a_near_miss_is_named_and_nothing_else_is() -> None:
    assert did_you_mean("horizn", ["horizon", "sia"]) == " Did you mean 'horizon'?"
    assert did_you_mean("zzz", ["horizon", "sia"]) == ""
    assert near_miss("si", iter(["sia"])) == "sia"


def test_a_tail_is_the_last_lines_of_what_there_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log, 2) == ""
    log.write_bytes(b"one\ntwo\nthr\xff\n")
    assert tail(log, 2) == "two\nthr\ufffd"
    assert tail(log, 9, max_bytes=5) == "thr\ufffd"


def test_what_a_terminal_would_obey_is_replaced_but_for_line_ends_and_tabulators() -> None:
    wrote = "a\tb\r\n\x1b[2J\x1b]0;title\x07\x9b31m\x08\x7f\x1b[31mred\x1b[0m é"
    assert printable(wrote) == "a\tb\r\n\ufffd[2J\ufffd]0;title\ufffd\ufffd31m\ufffd\ufffd\ufffd[31mred\ufffd[0m é"
    assert printable("\x1b[31mred\x1b[0m\x1b[2J\x1b[1;3H\x1b", colours=True) == (
        "\x1b[31mred\x1b[0m\ufffd[2J\ufffd[1;3H\ufffd"
    )
