"""The lines of a group's rank 0, each given once, whoever follows them and however often that one is started anew.

How far they were given lies beside the logs: the tasks of a group's segments follow one after the other, and a
triggerer that restarts goes on where it was. Lines may be given twice where one is killed before it has written that
down.
"""

from __future__ import annotations

import json
import os

from elastic_core.host.messages import WorkersByRank
from elastic_core.host.rundir import RunDir
from elastic_core.launch.worker_logs.parts import read_part
from elastic_core.settings import Settings

MOST_BYTES = 256 * 2**10  # of one turn
FAR_BEHIND = 16 * 2**20  # bytes; who prints so much faster than it is read is not followed through all of it


class FollowedLog:
    def __init__(self, settings: Settings, origin_epoch: int) -> None:
        self._folder = RunDir.of(settings.home, origin_epoch)

    def next_lines(self) -> list[str]:
        """Those that came since the last call of any follower, at most `MOST_BYTES` of them; [] for none.

        A line that says what is left out stands where lines are not kept any more, or were passed over. Of a line that
        was drawn over and over (a progress bar) the last state is given.
        """
        recorded = self._folder.read(WorkersByRank)
        number = recorded.numbers[0] if recorded else 0
        positions = self._positions()
        after = positions.get(str(number), 0)
        part = read_part(self._folder.log(number), after, MOST_BYTES)
        skipped = part.left_out
        if part.size - part.end > FAR_BEHIND:
            part = read_part(self._folder.log(number), None, MOST_BYTES)
            skipped = part.start - after
        if part.end == after and not part.text:
            return []
        self._keep({**positions, str(number): part.end})
        note = [f"... {skipped} bytes are left out here: elastic jobs logs"] if skipped else []
        return note + [line.rsplit("\r", 1)[-1] for line in part.text.rstrip("\n").split("\n")]

    @property
    def _file(self) -> str:
        return str(self._folder.path / "logs" / "followed.json")

    def _positions(self) -> dict[str, int]:
        try:
            with open(self._file) as file:
                positions: dict[str, int] = json.load(file)
            return positions
        except (FileNotFoundError, ValueError):  # cut off by a crash of the host: given again
            return {}

    def _keep(self, positions: dict[str, int]) -> None:
        with open(f"{self._file}.new", "w") as file:
            json.dump(positions, file)
        os.replace(f"{self._file}.new", self._file)
