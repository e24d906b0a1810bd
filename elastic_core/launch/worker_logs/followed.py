"""The lines of a group's rank 0, each given once, whoever follows them and however often that one is started anew.

How far they were given lies in a file of the home: the tasks of a group's segments follow one after the other, and a
triggerer that restarts goes on where it was. Lines may be given twice where one is killed before it has written that
down.

A job may print as much as it likes, and what is given is kept in one more place and handled by one event loop for all
jobs: so a turn and a segment have bounds. What is passed over is said, with where to read it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from elastic_core.launch.worker_logs.parts import LogPart, WorkerLog
from elastic_core.waiting import claim_turn

FOLDER = "followed"
TOUCHED_SECONDS = 3600.0  # between times that a file is marked as in use
# Of one turn, which comes each second: more than anybody reads in one, and a millisecond's work.
TURN_LINES, TURN_BYTES = 500, 64 * 2**10
# Of one segment, besides its end: a line a second for half a day, and a log that Airflow's page still opens.
SEGMENT_LINES, SEGMENT_BYTES = 50_000, 8 * 2**20
# Bytes of a burst that is shown in full, in some turns; who prints on and on so fast is caught up with.
FAR_BEHIND = 2**20


@dataclass(frozen=True, slots=True)
class _Given:
    """What followers were given so far."""

    positions: dict[str, int] = field(default_factory=dict)  # of the next byte, by name of a worker's log
    segment_id: str = ""  # the one that the last of it was given for; of it:
    lines: int = 0
    size: int = 0  # bytes

    @property
    def enough(self) -> bool:
        return self.lines >= SEGMENT_LINES or self.size >= SEGMENT_BYTES


class FollowedLog:
    """For the task of one segment. Every method raises `InfrastructureError` where the log cannot be read now."""

    def __init__(
        self, home: Path, log_of: Callable[[int, int], WorkerLog | None], origin_epoch: int, job_id: str,
        segment_id: str,
    ) -> None:  # fmt: skip
        """`log_of`: as `Launcher` has it."""
        self._log_of, self._origin_epoch, self._segment_id = log_of, origin_epoch, segment_id
        self._file = home / FOLDER / f"{origin_epoch}.json"
        self._everything = f"elastic jobs logs {job_id} --all"

    def next_lines(self) -> list[str]:
        """Those that came since the last call of any follower, at most a turn's; [] for none, and once the segment has
        been given enough.

        A line that says what is left out stands where lines are not kept any more, or were passed over. Of a line that
        was drawn over and over (a progress bar) the last state is given.
        """
        given = self._given()
        return [] if given.enough else self._turn(given, last=False)

    def last_lines(self) -> list[str]:
        """The end of what was printed, at most a turn's and a line that is not ended: nothing more comes of the
        segment."""
        return [*self._turn(self._given(), last=True), *self._turn(self._given(), last=True)]

    def _turn(self, given: _Given, *, last: bool) -> list[str]:
        log = self._log_of(self._origin_epoch, 0)
        if log is None:
            return []
        after = given.positions.get(log.name, 0)
        part, skipped = self._part(log, after, last)
        if part.end <= after and not part.text:  # or it cannot be found just now
            if self._file.exists():
                claim_turn(self._file, time.time(), TOUCHED_SECONDS)
            return []
        lines = [line.rsplit("\r", 1)[-1] for line in part.text.rstrip("\n").split("\n")]
        size = sum(len(line.encode()) + 1 for line in lines)
        given = replace(
            given, positions={**given.positions, log.name: part.end}, lines=given.lines + len(lines),
            size=given.size + size,
        )  # fmt: skip
        self._keep(given)
        before = [f"... {skipped} bytes are left out here: {self._everything}"] if skipped else []
        behind = [self._enough_words()] if given.enough and not last else []
        return [*before, *lines, *behind]

    def _part(self, log: WorkerLog, after: int, last: bool) -> tuple[LogPart, int]:
        """What comes next, and how many bytes before it are left out."""
        part = log.read(after, TURN_BYTES, TURN_LINES)
        left = part.size - part.end
        if left > FAR_BEHIND or (last and left > 0):
            end = log.read(None, TURN_BYTES, TURN_LINES)
            if end.start > after:
                return end, end.start - after
        return part, part.left_out

    def _enough_words(self) -> str:
        return (
            f"... a task's log takes {SEGMENT_LINES} lines or {SEGMENT_BYTES >> 20} MiB of what a segment prints: what "
            f"follows is left out here until its end: {self._everything}"
        )

    def _given(self) -> _Given:
        try:
            given = _Given(**json.loads(self._file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):  # cut off by a crash of the host: given again
            given = _Given()
        return given if given.segment_id == self._segment_id else _Given(given.positions, self._segment_id)

    def _keep(self, given: _Given) -> None:
        self._file.parent.mkdir(mode=0o700, exist_ok=True)
        new = self._file.with_suffix(f".{secrets.token_hex(4)}")  # a follower that hung may come to its end beside us
        new.write_text(json.dumps(asdict(given)))
        new.replace(self._file)


def forget_old(home: Path, before: float) -> None:
    """What was kept of groups whose log nobody has followed since this instant (Unix seconds), to an hour. What cannot
    be removed stays, and keeps no other."""
    with suppress(OSError):
        for file in list((home / FOLDER).glob("*")):
            with suppress(OSError):
                if file.stat().st_mtime < before:
                    file.unlink()
