"""How often a job may commit: its rows are looked at each minute until they are swept, and are in the ledger for good.

Counted by the process that is asked, and not in the ledger: whatever a job's code commits, marks as corrupt or repeats,
this costs nobody a look at its rows. A commit that comes too early is answered as if the ledger were away: it is sent
again until it is taken, and training goes on without a further checkpoint meanwhile.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Lock

from elastic_core.errors import TooMany

SECONDS = 120.0
MOST = 1_000  # commits within that: eight a second, where a checkpoint takes a fair part of that to write
SHARE_BYTES = 64 * 2**10  # that a commit says; each as much again counts as a further one


@dataclass(slots=True)
class _Lately:
    """Of one job."""

    commits: deque[tuple[float, int]] = field(default_factory=deque)  # when, and for how many it counts
    total: int = 0


class CommitPace:
    """Of one control plane; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._jobs: dict[str, _Lately] = {}

    def check(self, job_id: str, now: float, *, final: bool) -> None:
        """Raises `TooMany`. One that ends its segment waits for none of the others."""
        with self._lock:
            self._forget_old(now)
            total = self._jobs[job_id].total if job_id in self._jobs else 0
        if total >= (2 * MOST if final else MOST):
            raise TooMany(
                f"job {job_id!r} has committed {total} checkpoints within {SECONDS:g} s, where one with more than "
                f"{SHARE_BYTES} bytes of fingerprints, metrics, timings and notes counts for several; allowed are "
                f"{MOST}. This one is taken once there are fewer: take checkpoints less often "
                "(checkpoints.interval_seconds, .interval_steps)"
            )

    def count(self, job_id: str, now: float, size_bytes: int) -> None:
        """A commit was made. `size_bytes`: what `check_commit` gives of it."""
        weight = 1 + size_bytes // SHARE_BYTES
        with self._lock:
            lately = self._jobs.setdefault(job_id, _Lately())
            lately.commits.append((now, weight))
            lately.total += weight

    def _forget_old(self, now: float) -> None:
        """Also of a clock that was set back."""
        for job_id, lately in list(self._jobs.items()):
            while lately.commits and not 0 <= now - lately.commits[0][0] < SECONDS:
                lately.total -= lately.commits.popleft()[1]
            if not lately.commits:
                del self._jobs[job_id]
