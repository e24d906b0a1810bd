"""What earlier jobs taught, as one process keeps it between decisions: experience of types, and who can be predicted.

*Experience* (`predict.speed.experience`) is fitted from the ledger by `refresh`, which reconciliation calls every
minute and which does something every `REFRESH_SECONDS`; a decision does it itself only where that has not come for
long, so that its cost hardly ever falls on one. It sharpens the models of jobs that were measured on one type or none;
who was measured on several has taught it, and is not told his own measurements twice.

*Classes* come from the file that `control.scheduling.refit` writes. Only jobs whose work nobody knows (a target loss)
are asked about: what is declared is believed. A job's class is asked anew every `CLASS_SECONDS`, with the losses so
far, so that it may turn predictable while it runs. Whatever fails here is logged, the jobs' fields stay None, and
training goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING

from sqlalchemy import select, text

from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.finished import Losses, losses, resubmitted
from elastic_core.control.ledger.profiles import profiles
from elastic_core.control.ledger.tables import JobRow
from elastic_core.control.scheduling.submissions import submission_of
from elastic_core.domain import JobView, Limits, ProfilePoint, Snapshot, ThroughputModel, from_json
from elastic_core.errors import UserError
from elastic_core.logs import get_logger
from elastic_core.predict.speed.experience import NOTHING, Experience
from elastic_core.predict.speed.fit import experience_from, job_models
from elastic_core.predict.work import convergence
from elastic_core.protocol.records import JobFacts
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec

if TYPE_CHECKING:
    from elastic_core.predict.predictability.predictability import Classifier

REFRESH_SECONDS = 300.0
STALE_SECONDS = 1800.0  # experience that a decision refreshes itself
TEACHERS = 32  # jobs that experience is learnt from, the latest
RECENT_LEASES = 5000  # that they are looked for among
CLASS_SECONDS = 30.0
log = get_logger(__name__)

ON_SEVERAL_TYPES = text("""
    SELECT l.job_id FROM leases l
    JOIN lease_slots h ON h.epoch = l.epoch JOIN slots s ON s.id = h.slot JOIN nodes n ON n.name = s.node
    WHERE l.epoch > (SELECT max(epoch) FROM leases) - :recent
    GROUP BY l.job_id HAVING count(DISTINCT n.type) > 1
    ORDER BY max(l.epoch) DESC LIMIT :most
""")


@dataclass(frozen=True, slots=True)
class _Answer:
    """One job's answers, and when they were found."""

    at: float
    predictable: float | None
    expected_samples: float | None


@dataclass(frozen=True, slots=True)
class _Undeclared:
    """A job whose work nobody knows, as the ledger has it."""

    spec: JobSpec
    facts: JobFacts
    cap: int  # samples that it trains on at most
    resubmitted: bool
    losses: Losses


class Predictors:
    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self._ledger, self._settings = ledger, settings
        self._experience, self._refreshed_at = NOTHING, float("-inf")
        self._classifier: Classifier | None = None
        self._file_version: tuple[int, int] | None = None  # when the file that was read last was written, and its size
        self._answers: dict[str, _Answer] = {}

    def refresh(self, older_than: float = REFRESH_SECONDS) -> None:
        """Learn experience anew if what is known is older than that."""
        now = self._ledger.clock()
        if now - self._refreshed_at < older_than:
            return
        self._refreshed_at = now
        try:
            self._experience = self._ledger.read(_experience)
        except Exception:
            log.exception("experience cannot be learnt from the ledger: jobs go on with what was known")

    def model(self, points: tuple[ProfilePoint, ...], limits: Limits) -> ThroughputModel | None:
        """None where nothing is known of the job nor of the types: policies have a prior of their own for that."""
        if not points and self._experience == NOTHING:
            return None
        several = len({point.type for point in points}) > 1
        return job_models(points, limits, NOTHING if several else self._experience)

    def classify(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the class and the expected work of the jobs that have declared none."""
        undeclared = [job.job_id for job in snapshot.jobs if job.total_samples is None]
        self._answers = {job_id: answer for job_id, answer in self._answers.items() if job_id in undeclared}
        due = [job_id for job_id in undeclared if not self._is_fresh(job_id, snapshot.now)]
        try:
            if due:
                self._answer_anew(due, snapshot.now)
        except Exception:
            log.exception("the classes of jobs cannot be found out", jobs=due)
        return replace(snapshot, jobs=tuple(map(self._with_answer, snapshot.jobs)))

    def _is_fresh(self, job_id: str, now: float) -> bool:
        return job_id in self._answers and now - self._answers[job_id].at < CLASS_SECONDS

    def _with_answer(self, job: JobView) -> JobView:
        answer = self._answers.get(job.job_id)
        if answer is None:
            return job
        return replace(job, predictable=answer.predictable, expected_samples=answer.expected_samples)

    def _answer_anew(self, job_ids: Sequence[str], now: float) -> None:
        jobs = self._ledger.read(lambda tx: _read_undeclared(tx, job_ids))
        classes = self._classes(jobs)
        for job_id, job in jobs.items():
            self._answers[job_id] = _Answer(now, classes.get(job_id), _expected_samples(job))

    def _classes(self, jobs: Mapping[str, _Undeclared]) -> Mapping[str, float]:
        classifier = self._classifier_in_force()
        if classifier is None:
            return {}
        submissions = [submission_of(job.spec, job.facts, resubmitted=job.resubmitted) for job in jobs.values()]
        runs = [tuple(loss for _, loss in job.losses) for job in jobs.values()]
        return dict(zip(jobs, map(float, classifier.probability(submissions, runs)), strict=True))

    def _classifier_in_force(self) -> Classifier | None:
        """The classifier in force, loaded again when its file was replaced; None without one that can be read."""
        path = self._settings.predictability_file()
        try:
            file = path.stat()
        except OSError:
            self._classifier = self._file_version = None
            return None
        if (file.st_mtime_ns, file.st_size) != self._file_version:
            from elastic_core.predict.predictability import (
                stored,  # scikit-learn: seconds to import, for who has a classifier only
            )

            self._file_version, self._classifier = (file.st_mtime_ns, file.st_size), None
            try:
                self._classifier = stored.load(path)
            except UserError as error:
                log.error(f"jobs stay without a class: {error}")
        return self._classifier


def _experience(tx: Tx) -> Experience:
    teachers = tx.session.scalars(ON_SEVERAL_TYPES, {"recent": RECENT_LEASES, "most": TEACHERS}).all()
    specs = {row.id: row.spec for row in tx.session.scalars(select(JobRow).where(JobRow.id.in_(teachers)))}
    points = profiles(tx, teachers)
    return experience_from([(points[job_id], from_json(JobSpec, specs[job_id]).limits()) for job_id in points])


def _read_undeclared(tx: Tx, job_ids: Sequence[str]) -> dict[str, _Undeclared]:
    seen, again = losses(tx, job_ids), resubmitted(tx, job_ids)
    return {
        row.id: _Undeclared(
            spec=from_json(JobSpec, row.spec),
            facts=from_json(JobFacts, row.facts),
            cap=row.total_samples,
            resubmitted=again[row.id],
            losses=seen.get(row.id, ()),
        )
        for row in tx.session.scalars(select(JobRow).where(JobRow.id.in_(job_ids)))
    }


def _expected_samples(job: _Undeclared) -> float | None:
    """Samples of all its work: where its losses will have fallen to the target, at most what it may take."""
    target = job.spec.work.target_loss
    curve = convergence.fit(job.losses)
    if target is None or curve is None:
        return None
    median = curve.steps_to(target).median
    return min(median, float(job.cap)) if isfinite(median) else None
