"""Slots that a group over several nodes has left while it goes on, given back to the ledger by its coordinator.

As an agent does for its host (`launch.workers.left_slots`), with the agent's token, which no node but rank 0's has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from elastic_core import logs
from elastic_core.host.messages import SlotId
from elastic_core.launch.delivery import tell_left
from elastic_core.launch.workers.left_slots import LeftSlots, Said

log = logs.get_logger(__name__)

RETRY_SECONDS = 5.0  # after what nobody foresaw


class SlotReturn:
    """One call at a time, in a thread: nobody waits for an API that is away."""

    def __init__(self, control_url: str, token: str) -> None:
        self._control_url, self._token = control_url, token
        self.left = LeftSlots()
        self._said: Said | None = None  # that was refused, or is being said
        self._taken: Said | None = None  # by the ledger

    def turn(self, epoch: int, is_clear: Callable[[SlotId], bool]) -> None:
        """`epoch`: of the order in force; `is_clear`: whether nothing of the group is left on a slot."""
        taken, self._taken = self._taken, None
        if taken is not None:
            self.left.told(taken[1])
        say = epoch, tuple(slot for slot in self.left.cleared() if is_clear(slot))
        if say != self._said:
            self._said = say if say[1] else None
            if say[1]:
                threading.Thread(target=self._say, args=(say,), name="slot-return", daemon=True).start()

    def _say(self, say: Said) -> None:
        try:
            if tell_left(self._control_url, self._token, *say, wanted=lambda: self._said is say):
                self._taken = say
        except Exception:
            log.exception("cannot tell the ledger which slots are left, will try again")
            time.sleep(RETRY_SECONDS)
            if self._said is say:
                self._said = None
