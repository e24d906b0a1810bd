"""What earlier jobs taught, as one process keeps it between decisions: experience of types, and who can be predicted.

*Experience* (`predict.speed.experience`) is fitted from the ledger by `refresh`, which reconciliation calls every
minute and which does something every `REFRESH_SECONDS`; a decision does it itself only where that has not come for
long, so that its cost hardly ever falls on one. It sharpens the models of jobs that were measured on one type or none;
who was measured on several has taught it, and is not told his own measurements twice.

*Classes* and *forecasts* come from the files that `refit` writes. Of classes and work only jobs whose end nobody knows
are asked about: what is declared is believed. A decision asks about a job that it sees for the first time; from then on
`renew`, which reconciliation calls as well, asks anew with what the job has reported so far, so that it may turn
predictable while it runs; of many jobs about some at a time, the longest not asked about first, since no decision
may be made meanwhile. What was so at a job's submission is read once. Where nothing was learnt the stated prior
forecasts the work. What a step takes is forecast of every job that has measured none (`step_forecasts`). Whatever fails
here is logged, the jobs' fields stay None, and training goes on. With the setting `use_predictors` off nothing is
learnt and no job is asked about.

The same files answer about a job that is not submitted yet (`outlook`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from sqlalchemy import select, text

from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.finished import describe, described, losses, metrics, resubmitted
from elastic_core.control.ledger.profiles import profiles
from elastic_core.control.ledger.tables import JobRow
from elastic_core.control.ledger.views import spec_of
from elastic_core.control.scheduling import snapshots
from elastic_core.control.scheduling.predicting.step_forecasts import StepForecasts
from elastic_core.control.scheduling.predicting.submissions import submission_of
from elastic_core.control.scheduling.report_windows import ReportWindows
from elastic_core.domain import (
    JobView,
    Limits,
    ProfilePoint,
    Snapshot,
    StepForecast,
    ThroughputModel,
    WorkForecast,
    WorkLeft,
)
from elastic_core.errors import UserError
from elastic_core.logs import get_logger
from elastic_core.placement.placed_models import limits_of
from elastic_core.policy.base.policy import Policy, decided_work
from elastic_core.predict.forecasts.run_features import Progress, averaged_losses
from elastic_core.predict.forecasts.unlearned import unlearned_forecasts
from elastic_core.predict.speed.experience import NOTHING, Experience
from elastic_core.predict.speed.fit import Profiled, experience_from, job_models, models_of_jobs
from elastic_core.predict.work import convergence
from elastic_core.predict.work.work_left import work_left
from elastic_core.protocol.forecasts import Outlook
from elastic_core.protocol.records import JobDescription, JobFacts, Reports
from elastic_core.settings import Settings
from elastic_core.snapshot.job_record import unsubmitted
from elastic_core.spec import JobSpec, total_samples

if TYPE_CHECKING:
    from elastic_core.predict.forecasts.forecast_files import Forecasters
    from elastic_core.predict.predictability.predictability import Classifier

REFRESH_SECONDS = 300.0
STALE_SECONDS = 1800.0  # experience that a decision refreshes itself
TEACHERS = 32  # jobs that experience is learnt from, the latest
RECENT_LEASES = 5000  # that they are looked for among
CLASS_SECONDS = 30.0  # age of an answer that reconciliation renews
STALE_CLASS_SECONDS = 600.0  # that a decision renews itself, where reconciliation has not for as long
UNSUBMITTED = ""  # the id that an outlook gives a job, which no job has
MOST_RENEWED = 150  # answers at a time: each takes milliseconds, all together a second
log = get_logger(__name__)

# Among the newest leases by their order: how far epochs lie apart says nothing, a restored ledger goes on far above.
ON_SEVERAL_TYPES = text("""
    SELECT l.job_id FROM (SELECT job_id, epoch FROM leases ORDER BY epoch DESC LIMIT :recent) AS l
    JOIN lease_slots h ON h.epoch = l.epoch JOIN slots s ON s.id = h.slot JOIN nodes n ON n.name = s.node
    GROUP BY l.job_id HAVING count(DISTINCT n.type) > 1
    ORDER BY max(l.epoch) DESC LIMIT :most
""")


@dataclass(frozen=True, slots=True)
class _Answer:
    """One job's answers, and when they were found."""

    at: float
    resubmitted: bool  # which never changes
    predictable: float | None
    expected_samples: float | None
    work: WorkForecast | None


@dataclass(frozen=True, slots=True)
class _Undeclared:
    """A job whose work nobody knows, as the ledger has it."""

    description: JobDescription
    resubmitted: bool
    losses: Reports
    metrics: Reports


T = TypeVar("T")


class _Loaded(Generic[T]):
    """What a file holds, loaded again when it was replaced; None without one that can be read."""

    def __init__(self, path: Path, load: Callable[[Path], T], without: str) -> None:
        self._path, self._load, self._without = path, load, without
        self._version: tuple[int, int] | None = None  # when the file that was read last was written, and its size
        self._content: T | None = None

    def get(self) -> T | None:
        try:
            file = self._path.stat()
        except OSError:
            self._content = self._version = None
            return None
        if (file.st_mtime_ns, file.st_size) != self._version:
            self._version, self._content = (file.st_mtime_ns, file.st_size), None
            try:
                self._content = self._load(self._path)
            except UserError as error:
                log.error(f"{self._without}: {error}")
            except (KeyError, TypeError, ValueError, AttributeError) as error:  # of our format, but not of our making
                log.error(f"{self._without}: {self._path} is damaged: {error!r}")
        return self._content


class Predictors:
    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self._ledger, self._settings = ledger, settings
        self._experience, self._refreshed_at = NOTHING, float("-inf")
        self._classifier = _Loaded(settings.predictability_file(), _load_classifier, "jobs stay without a class")
        self._forecasters = _Loaded(settings.forecasts_file(), _load_forecasters, "forecasts are those of the prior")
        self._answers: dict[str, _Answer] = {}
        self._renewed_at = float("-inf")
        self.windows = ReportWindows()
        self._steps = StepForecasts(ledger, self._forecasters.get)

    def refresh(self, older_than: float = REFRESH_SECONDS) -> None:
        """Learn experience anew if what is known is older than that."""
        now = self._ledger.clock()
        if not self._settings.use_predictors or now - self._refreshed_at < older_than:
            return
        self._refreshed_at = now
        try:
            self._experience = self._ledger.read(_experience)
        except Exception:
            log.exception("experience cannot be learnt from the ledger: jobs go on with what was known")

    def renew(self) -> None:
        """Ask anew about the active jobs that have declared no work, those that have had no answer for a while; of more
        than `MOST_RENEWED` the rest the next times.

        Nothing is read where no decision has asked about any.
        """
        if self._settings.use_predictors and self._answers:
            snapshot = self._ledger.read(lambda tx: snapshots.build(tx, "", self.windows.profiles))
            self._renewed_at = snapshot.now
            self._ask_due(snapshot, CLASS_SECONDS)

    def fit_together(self, snapshot: Snapshot) -> None:
        """Fit the models of all jobs that have measured something new at once, for `model` to find them."""
        measured = [job for job in snapshot.jobs if self._is_known(job.profile)]
        try:
            models_of_jobs([self._profiled(job.profile, job.limits) for job in measured])
        except Exception:
            log.exception("models cannot be fitted together: each is fitted by itself", jobs=len(measured))

    def model(self, points: tuple[ProfilePoint, ...], limits: Limits) -> ThroughputModel | None:
        """None where nothing is known of the job nor of the types: policies have a prior of their own for that."""
        return job_models(*self._profiled(points, limits)) if self._is_known(points) else None

    def _is_known(self, points: tuple[ProfilePoint, ...]) -> bool:
        return bool(points) or self._experience != NOTHING

    def _profiled(self, points: tuple[ProfilePoint, ...], limits: Limits) -> Profiled:
        several = len({point.type for point in points}) > 1
        return points, limits, NOTHING if several else self._experience

    def classify(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the class and the work of the jobs that have declared none, and the steps of those that
        have measured none."""
        if not self._settings.use_predictors:
            return snapshot
        nobody_renews = snapshot.now - self._renewed_at >= STALE_CLASS_SECONDS
        self._ask_due(snapshot, STALE_CLASS_SECONDS if nobody_renews else inf)
        steps = self._steps.of_unmeasured(snapshot)
        jobs = (self._with_answer(job, steps.get(job.job_id)) for job in snapshot.jobs)
        return replace(snapshot, jobs=tuple(jobs))

    def outlook(self, spec: JobSpec, facts: JobFacts, snapshot: Snapshot, policy: Policy) -> Outlook:
        """Of a job that is not submitted: its work where no amount is declared, as this policy would decide by it, and
        its steps on whatever slots of one type the nodes can give it, at its base batch or a sample a slot.

        `snapshot`: what the policy would be asked with now; no models are needed."""
        if not self._settings.use_predictors:
            return Outlook()
        job = describe(spec, facts, total_samples(spec, facts.dataset_samples))
        steps = self._steps.outlooks(job, spec.limits(), snapshot.nodes)
        if spec.work.end_is_known:
            return Outlook(steps=steps)
        view = self._as_submitted(spec, facts, job, snapshot)
        decided = _decided(policy, snapshot, view)
        work, source = work_left(view, decided)
        return Outlook(work=work, work_source=source, work_decided=decided is not None, steps=steps)

    def _as_submitted(self, spec: JobSpec, facts: JobFacts, job: JobDescription, snapshot: Snapshot) -> JobView:
        """What its first decision would be shown of it."""
        limits = limits_of(spec, facts)
        undeclared, nothing_done = {UNSUBMITTED: _unsubmitted(job)}, {UNSUBMITTED: Progress(0.0, (), ())}
        classes = self._classes(undeclared, nothing_done)
        return replace(
            unsubmitted(spec, UNSUBMITTED, limits, snapshot.now, job.most_samples),
            predictable=classes.get(UNSUBMITTED),
            work_forecast=self._work(undeclared, nothing_done, classes)[UNSUBMITTED],
            step_forecast=self._steps.of_unsubmitted(job, limits, snapshot.capacity()),
        )

    def _ask_due(self, snapshot: Snapshot, older_than: float) -> None:
        """Ask about all who have no answer, and some of those whose answer is older; forget who is no longer there."""
        undeclared = {job.job_id: job for job in snapshot.jobs if job.total_samples is None}
        known = {job_id: answer for job_id, answer in self._answers.items() if job_id in undeclared}
        new = [job for job_id, job in undeclared.items() if job_id not in known]
        old = [undeclared[job_id] for job_id, answer in known.items() if snapshot.now - answer.at >= older_than]
        due = [*new, *sorted(old, key=lambda job: known[job.job_id].at)[:MOST_RENEWED]]
        try:
            known |= self._answers_of(due, snapshot) if due else {}
        except Exception:
            log.exception("the classes of jobs cannot be found out", jobs=[job.job_id for job in due])
        self._answers = known  # in one go: decisions and reconciliation may be at it at once

    def _with_answer(self, job: JobView, steps: StepForecast | None) -> JobView:
        """A forecast stays as it was made: whoever asks it takes account of what the job has done by then."""
        answer = self._answers.get(job.job_id)
        if answer is None:
            return job if steps is None else replace(job, step_forecast=steps)
        return replace(
            job,
            predictable=answer.predictable,
            expected_samples=answer.expected_samples,
            work_forecast=answer.work,
            step_forecast=steps,
        )

    def _answers_of(self, views: Sequence[JobView], snapshot: Snapshot) -> dict[str, _Answer]:
        done = {view.job_id: view.done_samples for view in views}
        again = {job_id: answer.resubmitted for job_id, answer in self._answers.items() if job_id in done}
        jobs = self._ledger.read(lambda tx: _read_undeclared(tx, list(done), again))
        progress = {job_id: Progress(float(done[job_id]), job.losses, job.metrics) for job_id, job in jobs.items()}
        classes = self._classes(jobs, progress)
        work = self._work(jobs, progress, classes)
        return {
            job_id: _Answer(
                at=snapshot.now,
                resubmitted=job.resubmitted,
                predictable=classes.get(job_id),
                expected_samples=_expected_samples(job),
                work=work.get(job_id),
            )
            for job_id, job in jobs.items()
        }

    def _classes(self, jobs: Mapping[str, _Undeclared], progress: Mapping[str, Progress]) -> Mapping[str, float]:
        classifier = self._classifier.get()
        if classifier is None:
            return {}
        submissions = [submission_of(job.description, resubmitted=job.resubmitted) for job in jobs.values()]
        so_far = [progress[job_id] for job_id in jobs]
        runs = classifier.describe([job.description for job in jobs.values()], so_far)
        said = classifier.probability(submissions, [averaged_losses(run) for run in so_far], runs)
        return dict(zip(jobs, map(float, said), strict=True))

    def _work(
        self, jobs: Mapping[str, _Undeclared], progress: Mapping[str, Progress], classes: Mapping[str, float]
    ) -> Mapping[str, WorkForecast]:
        """Of the work that a job has done by now, which its last report may lie behind."""
        forecasters = self._forecasters.get()
        descriptions, so_far = [job.description for job in jobs.values()], [progress[job_id] for job_id in jobs]
        if forecasters is None or forecasters.work is None:
            return dict(zip(jobs, unlearned_forecasts(descriptions, so_far), strict=True))
        said = zip(jobs, forecasters.work.forecasts(descriptions, so_far), strict=True)
        return {job_id: forecasters.weights.told_with(work, classes.get(job_id)) for job_id, work in said}


def _decided(policy: Policy, snapshot: Snapshot, view: JobView) -> WorkLeft | None:
    """What the policy would decide by of one more job. The others are left out, whose work left is their own."""
    others = tuple(job.job_id for job in snapshot.jobs)
    alone = replace(snapshot, jobs=(view,), not_finished=(*snapshot.not_finished, *others))
    try:
        return decided_work(policy, alone).get(view.job_id)
    except Exception:
        log.exception("the work of a job cannot be told as a policy would decide by it", policy=policy.name)
        return None


def _unsubmitted(job: JobDescription) -> _Undeclared:
    return _Undeclared(description=job, resubmitted=False, losses=(), metrics=())


def _load_classifier(path: Path) -> Classifier:
    # scikit-learn: seconds to import, for who has a classifier only
    from elastic_core.predict.predictability import stored

    return stored.load(path)


def _load_forecasters(path: Path) -> Forecasters:
    from elastic_core.predict.forecasts import forecast_files

    return forecast_files.load(path)


def _experience(tx: Tx) -> Experience:
    teachers = tx.session.scalars(ON_SEVERAL_TYPES, {"recent": RECENT_LEASES, "most": TEACHERS}).all()
    specs = {row.id: spec_of(row) for row in tx.session.scalars(select(JobRow).where(JobRow.id.in_(teachers)))}
    points = profiles(tx, teachers)
    return experience_from([(points[job_id], specs[job_id].limits()) for job_id in points])


def _read_undeclared(tx: Tx, job_ids: Sequence[str], known: Mapping[str, bool]) -> dict[str, _Undeclared]:
    """`known`: of some, whether they were submitted before, which is looked for among all jobs."""
    seen, evaluated = losses(tx, job_ids), metrics(tx, job_ids)
    unknown = [job_id for job_id in job_ids if job_id not in known]
    again = {**known, **(resubmitted(tx, unknown) if unknown else {})}
    jobs = {}
    for row in tx.session.scalars(select(JobRow).where(JobRow.id.in_(job_ids))):
        jobs[row.id] = _Undeclared(
            description=described(row),
            resubmitted=again[row.id],
            losses=seen.get(row.id, ()),
            metrics=evaluated.get(row.id, ()),
        )
    return jobs


def _expected_samples(job: _Undeclared) -> float | None:
    """Samples of all its work: where its losses will have fallen to the target, at most what it may take."""
    target = job.description.target_loss
    curve = convergence.fit(job.losses)
    if target is None or curve is None:
        return None
    median = curve.steps_to(target).median
    return min(median, float(job.description.most_samples)) if isfinite(median) else None
