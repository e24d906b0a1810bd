"""How one job went and would go, and who held which slots: answers of `plane.LedgerControl` that change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_core.control import job_course, job_parts
from elastic_core.control.ledger import leases, reads
from elastic_core.control.ledger.database import Ledger
from elastic_core.control.scheduling import scaling_curve
from elastic_core.control.scheduling.allocator import Allocator
from elastic_core.control.slots_shown import cluster_shown
from elastic_core.control.waiting_jobs import WaitingJobs
from elastic_core.protocol.cluster.cluster_slots import ClusterShown
from elastic_core.protocol.cluster.cluster_timeline import HeldStretch, TimelinePage
from elastic_core.protocol.process_groups import StoredCheckpoint
from elastic_core.protocol.records import CheckpointRecord, JobGroup, JobStatus, SegmentStatus
from elastic_core.protocol.rest.job_details import CheckpointPage, JobMoves, JobReport, Part, ScalingCurve, SegmentPage


class JobAnswers:
    """Whoever inherits it has a ledger, an allocator, and what it knows of jobs that wait."""

    _ledger: Ledger
    _waiting: WaitingJobs
    allocator: Allocator

    def reports(self, job_id: str, most: int) -> list[JobReport]:
        """At most so many of what it reported, evenly spread, the oldest first."""
        return self._ledger.read(lambda tx: job_course.reports(tx, job_id, most))

    def moves(self, job_id: str) -> JobMoves:
        return self._ledger.read(lambda tx: job_course.moves(tx, job_id))

    def courses(self, job_ids: Sequence[str]) -> dict[str, job_course.JobCourse]:
        """Where these jobs are on their way, those of them that there are."""
        return self._ledger.read(lambda tx: job_course.courses(tx, job_ids))

    def kept_steps(self, job_id: str) -> dict[int, int]:
        """Of each lineage before the present one, the last step that the job's state goes back to."""
        return self._ledger.read(lambda tx: job_course.kept_steps(tx, job_id))

    def scaling_curve(self, job_id: str) -> ScalingCurve:
        """Measured and predicted samples a second, by slots of each type."""
        known = self._ledger.read(lambda tx: scaling_curve.basis(tx, job_id))
        return scaling_curve.scaling_curve(known, self.allocator.predictors.model)

    def segments(self, job_id: str) -> list[SegmentStatus]:
        return self._ledger.read(lambda tx: reads.segments(tx, job_id))

    def segments_page(self, job_id: str, part: Part) -> SegmentPage:
        return self._ledger.read(lambda tx: job_parts.segments_page(tx, job_id, part))

    def groups_of(self, job_id: str) -> list[JobGroup]:
        return self._ledger.read(lambda tx: reads.groups_of(tx, job_id))

    def live_epochs(self, job_ids: Sequence[str]) -> list[int]:
        return self._ledger.read(lambda tx: leases.live_epochs(tx, job_ids))

    def jobs_of_window(self, since: float, most_ended: int) -> list[JobStatus]:
        """Active jobs by age, then those that ended at or after `since`, the newest first, and so many of them."""
        return self._ledger.read(lambda tx: self._waiting.placed(tx, reads.jobs_of_window(tx, since, most_ended)))

    def cluster(self) -> ClusterShown:
        return self._ledger.read(lambda tx: cluster_shown(tx, self._waiting))

    def timeline(self, since: float) -> list[HeldStretch]:
        """Of all jobs, who held which slots at or after `since`, by the time they were granted."""
        return self._ledger.read(lambda tx: reads.timeline(tx, since))

    def timeline_page(self, since: float, until: float, part: Part) -> TimelinePage:
        return self._ledger.read(lambda tx: reads.timeline_page(tx, since, until, part))

    def checkpoints(self, job_id: str) -> list[CheckpointRecord]:
        return self._ledger.read(lambda tx: reads.checkpoints(tx, job_id))

    def stored_checkpoints(self, job_id: str) -> list[StoredCheckpoint]:
        return self._ledger.read(lambda tx: reads.stored_checkpoints(tx, job_id))

    def checkpoints_page(self, job_id: str, part: Part) -> CheckpointPage:
        return self._ledger.read(lambda tx: job_parts.checkpoints_page(tx, job_id, part))
