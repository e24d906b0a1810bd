"""What is kept of workers' logs in the store reads as the files did, from where it begins."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from elastic_core.launch.worker_logs import kept
from elastic_core.launch.worker_logs.kept import KeptLogs
from elastic_core.launch.worker_logs.parts import read_part
from elastic_core.state.stores.local_store import LocalStore

LINES = [f"line {number}\n" for number in range(100)]


@pytest.fixture
def logs(tmp_path: Path) -> KeptLogs:
    return KeptLogs(LocalStore(tmp_path / "store"), "elastic")


def printed(folder: Path, text: str) -> Path:
    path = folder / "rank0.log"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("after", "most", "most_lines"), [(None, 30, None), (0, 30, None), (100, 10_000, 3), (None, 10_000, 2)]
)
def test_it_reads_as_the_file(
    logs: KeptLogs, tmp_path: Path, after: int | None, most: int, most_lines: int | None
) -> None:
    path = printed(tmp_path, "".join(LINES))
    logs.keep(7, {0: path})
    assert logs.log_of(7, 0).read(after, most, most_lines) == read_part(path, after, most, most_lines)


def test_of_a_long_log_the_end_is_kept_with_its_positions_and_the_rest_is_said_to_be_left_out(
    logs: KeptLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST_BYTES", 100)
    path = printed(tmp_path, "".join(LINES))
    logs.keep(7, {0: path})
    size = path.stat().st_size
    part = logs.log_of(7, 0).read(0, 10_000)
    assert part.text == "".join(LINES[-12:])
    assert (part.end, part.size, part.left_out) == (size, size, size - len(part.text))
    assert logs.log_of(7, 0).read(None, 50) == read_part(path, None, 50)
    assert logs.log_of(7, 0).read(size, 50).text == ""


def test_a_hole_where_the_oldest_was_is_no_text(logs: KeptLogs, tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    with path.open("wb") as file:
        file.seek(8192)
        file.write(b"of a line\nthe rest\n")
    logs.keep(7, {0: path})
    assert logs.log_of(7, 0).read(None, 10_000).text == "the rest\n"


def test_ranks_are_those_up_to_the_last_and_a_rank_of_which_nothing_is_kept_has_no_file(
    logs: KeptLogs, tmp_path: Path
) -> None:
    assert logs.ranks(7) == 0
    logs.keep(7, {1: printed(tmp_path, "a line\n"), 2: tmp_path / "never printed"})
    assert (logs.ranks(7), logs.ranks(70)) == (2, 0)
    assert (logs.keeps(7, 1), logs.keeps(7, 0)) == (True, False)
    with pytest.raises(FileNotFoundError):
        logs.log_of(7, 0).read(None, 1000)


def test_what_is_old_goes_and_that_of_another_installation_stays(logs: KeptLogs, tmp_path: Path) -> None:
    path, other = printed(tmp_path, "a line\n"), KeptLogs(logs.store, "elastic-2")
    for which, epoch in ((logs, 7), (logs, 8), (other, 7)):
        which.keep(epoch, {0: path})
    now = time.time()
    for of in ("elastic/7", "elastic-2/7"):
        os.utime(tmp_path / "store" / kept.FOLDER / of / "rank0.log", (now - 100, now - 100))
    assert logs.remove_old(now - 50) == 1
    assert (logs.ranks(7), logs.ranks(8), other.ranks(7)) == (0, 1, 1)
