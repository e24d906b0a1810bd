"""How often a job may commit and end its segments, and how much it may report: what it writes is looked at each minute,
or is in the ledger for good or for a month, and a boundary that nobody planned has all jobs decided on.

Counted by the process that is asked, and not in the ledger: whatever a job's code commits, marks as corrupt or repeats,
this costs nobody a look at its rows. What comes too early is answered as if the ledger were away: it is sent again
until it is taken. Training goes on without a further checkpoint meanwhile; at a boundary it waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Lock

from elastic_core.errors import TooMany

SECONDS = 120.0
MOST = 1_000  # commits within that: eight a second, where a checkpoint takes a fair part of that to write
SHARE_BYTES = 64 * 2**10  # that a commit says; each as much again counts as a further one
SEGMENTS, SEGMENT_SECONDS = 60, 2.0  # at once, and until there is one more. Each is also a run of Airflow's
# Of reports, at once and a second: an hour without an answer, and ten times what a trainer says by itself.
REPORTS, REPORTS_A_SECOND = 10_000, 20
REPORT_BYTES, REPORT_BYTES_A_SECOND = 32 * 2**20, 32 * 2**10
FEW = 128  # jobs that an allowance remembers in any case


class Allowance:
    """So much at once for each job, and so much more each second. Safe to use from many threads."""

    def __init__(self, most: float, per_second: float) -> None:
        self._most, self._per_second = most, per_second
        self._lock = Lock()
        self._spent: dict[str, tuple[float, float]] = {}  # by job: how much of it, and when
        self._remembered = FEW

    def left(self, job_id: str, now: float) -> float:
        """Less than nothing where more was spent than there was."""
        with self._lock:
            return self._most - self._spent_by(job_id, now)

    def spend(self, job_id: str, now: float, amount: float) -> None:
        with self._lock:
            self._spend(job_id, now, amount)

    def take(self, job_id: str, now: float, amount: float) -> bool:
        """Spend so much where there is as much, else nothing: of many at once no more than there is."""
        with self._lock:
            if self._most - self._spent_by(job_id, now) < amount:
                return False
            self._spend(job_id, now, amount)
            return True

    def _spend(self, job_id: str, now: float, amount: float) -> None:
        self._spent[job_id] = (self._spent_by(job_id, now) + amount, now)
        if len(self._spent) > 2 * self._remembered:
            self._spent = {job: spent for job, spent in self._spent.items() if self._spent_by(job, now)}
            self._remembered = max(FEW, len(self._spent))

    def _spent_by(self, job_id: str, now: float) -> float:
        spent, at = self._spent.get(job_id, (0.0, now))
        if now < at:  # the clock was set back
            return 0.0
        return max(0.0, spent - (now - at) * self._per_second)


class BoundaryPace:
    """Of one control plane: of boundaries that have it decided what the job gets next."""

    def __init__(self) -> None:
        self._boundaries = Allowance(SEGMENTS, 1 / SEGMENT_SECONDS)

    def take(self, job_id: str, now: float) -> None:
        """One is reached. Raises `TooMany`."""
        if not self._boundaries.take(job_id, now, 1):
            raise TooMany(
                f"job {job_id!r} has ended {SEGMENTS} segments, and one every {SEGMENT_SECONDS:g} s since, which is "
                "the most. This one ends once there may be one more: make segments longer (segment.seconds, "
                "segment.steps)"
            )


class ReportPace:
    """Of one control plane. A trainer keeps what is not taken, as it does in an outage."""

    def __init__(self) -> None:
        self._reports = Allowance(REPORTS, REPORTS_A_SECOND)
        self._bytes = Allowance(REPORT_BYTES, REPORT_BYTES_A_SECOND)

    def check(self, job_id: str, now: float) -> None:
        """Raises `TooMany`."""
        if min(self._reports.left(job_id, now), self._bytes.left(job_id, now)) <= 0:
            raise TooMany(
                f"job {job_id!r} has reported {REPORTS} observations or {REPORT_BYTES} bytes, and "
                f"{REPORTS_A_SECOND} or {REPORT_BYTES_A_SECOND} a second since, which is the most. This is taken "
                "later: report less often, and fewer metrics"
            )

    def count(self, job_id: str, now: float, reports: int, size_bytes: int) -> None:
        """They were taken."""
        self._reports.spend(job_id, now, reports)
        self._bytes.spend(job_id, now, size_bytes)


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


@dataclass(frozen=True, slots=True)
class Paces:
    """Of one control plane."""

    commits: CommitPace = field(default_factory=CommitPace)
    boundaries: BoundaryPace = field(default_factory=BoundaryPace)
    reports: ReportPace = field(default_factory=ReportPace)
