"""The ledger's events as MLflow shows them.

A job is a parent run (a new one for each lineage, since MLflow cannot un-log what a rollback gives up); each
attempt of a segment is a nested child run with its live curves. The parent's curve gets a step when the step is
committed, with the time it was measured at: (key, step, value, timestamp) equal adds nothing, so no gap and no
doubled step comes from resizes, crashes, or this process being killed anywhere.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric

from elastic_core.domain import Allocation, ExchangeFallback, JobState, SegmentState, from_json
from elastic_core.errors import InfrastructureError
from elastic_core.protocol.events import Event, EventKind, Feed
from elastic_core.protocol.exchange_words import choice_words, fallback_words
from elastic_core.protocol.process_groups import EVALUATION, FORK, fork_of, held_out
from elastic_core.protocol.records import JobStatus
from elastic_core.settings import Settings
from elastic_core.track import facts
from elastic_core.track.mlflow_runs import Recent, Refused, Run, Runs
from elastic_core.track.segment_facts import Segment, checkpoint_of, observations, read_segment
from elastic_core.track.tracker import Jobs

log = logging.getLogger(__name__)

_TOLD_OTHERWISE = (
    EVALUATION,
    "airflow",
    "mlflow_run_id",
    "mlflow_experiment_id",
    "registered_checkpoints",
    "registered_versions",
)  # of a job's results
_FLUSH_AT = 1000  # points; one request of MLflow's largest size
_SEGMENT_STATUS = {SegmentState.COMMITTED: "FINISHED", SegmentState.CANCELLED: "KILLED"}
_JOB_STATUS = {JobState.FINISHED: "FINISHED", JobState.FAILED: "FAILED", JobState.CANCELLED: "KILLED"}


class MlflowTracker:
    """`Tracker` over one MLflow server. `feed` is read again for what a commit makes part of the job's history."""

    def __init__(self, client: MlflowClient, jobs: Jobs, feed: Feed, settings: Settings) -> None:
        self._runs = Runs(client, proxied_only=not settings.mlflow_uri)
        self._jobs = jobs
        self._feed = feed
        self._settings = settings
        self._job_runs: Recent[Run] = Recent()
        self._attempts: Recent[Run] = Recent()
        self._segments: Recent[Segment] = Recent()
        self._points: dict[Run, list[Metric]] = defaultdict(list)

    def record(self, events: Sequence[Event]) -> None:
        try:
            self._record_all(events, self._attempted)
        except Refused:
            # Perhaps the server was set up anew and the run ids we remember are of the old one.
            self._forget()
            self._record_all(events, self._skipping)

    def answers(self, event: Event, /) -> bool:
        """As the contract says. A refusal is an answer."""
        try:
            self._runs.ask(self._runs.experiment(facts.experiment_name(self._jobs.job(event.job_id).spec)))
        except InfrastructureError:
            return False
        except Refused:
            return True
        return True

    def _record_all(self, events: Sequence[Event], carefully: Callable[[str, Callable[[], None]], None]) -> None:
        self._points.clear()  # of a page that failed and comes again
        try:
            for event in events:
                what = f"event {event.position} ({event.kind} of job {event.job_id})"
                carefully(what, partial(self._record, event))
        except (InfrastructureError, Refused):
            raise  # the same events come again
        except Exception:  # the event may be passed over: what was told before it went wrong may not
            self._flush_all(carefully)
            raise
        self._flush_all(carefully)

    def _flush_all(self, carefully: Callable[[str, Callable[[], None]], None]) -> None:
        for run in list(self._points):
            carefully(f"points of run {run.run_id}", partial(self._flush, run))

    @staticmethod
    def _attempted(_what: str, action: Callable[[], None]) -> None:
        action()

    @staticmethod
    def _skipping(what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Refused as error:
            # A run or experiment that a user deleted stays so, and must not hold up every other job's events.
            log.error("%s: not shown: %s", what, error)

    def _forget(self) -> None:
        self._runs.forget()
        self._job_runs.clear()
        self._attempts.clear()

    def _record(self, event: Event) -> None:
        if event.kind is EventKind.POLICY_CHANGED:
            return  # of the pool: MLflow shows jobs
        handler = {
            EventKind.JOB_SUBMITTED: self._job_submitted,
            EventKind.SEGMENT_GRANTED: self._segment_granted,
            EventKind.OBSERVED: self._observed,
            EventKind.COMMITTED: self._committed,
            EventKind.SEGMENT_ENDED: self._segment_ended,
            EventKind.JOB_ENDED: self._job_ended,
            EventKind.RESULTS: self._results,
            EventKind.EXCHANGE_FELL_BACK: self._exchange_fell_back,
            EventKind.NOTE: self._note,
            EventKind.CHECKPOINTS_RETIRED: self._checkpoints_retired,
        }[event.kind]
        handler(event)
        if event.segment_id is not None:
            self._segment(event).learn(event)

    def _job_submitted(self, event: Event) -> None:
        job = self._jobs.job(event.job_id)
        self._job_run(job)
        fork = fork_of(job.results)
        if fork is not None:  # it is found from the checkpoint, too
            parents = self._runs.experiment(facts.experiment_name(self._jobs.job(fork.job_id).spec))
            self._runs.tag_checkpoint(parents, fork.uri, {f"elastic.fork.{job.job_id}": f"from step {fork.step}"})

    def _segment_granted(self, event: Event) -> None:
        self._segment(event).learn(event)
        self._attempt(event)
        if not event.payload["handed_over"]:
            self._runs.resume(self._parent(event))  # the first grant of a revived job
            self._end_given_up(event, self._parent(event), int(event.payload["lineage"]))

    def _observed(self, event: Event) -> None:
        reported = observations(event)
        run = self._attempt(event)
        placed = facts.placed_figures(self._grant(event).payload)
        self._add(run, (p for o in reported for p in facts.curve_points(o, placed)))
        for choice in [o.choice for o in reported if o.choice is not None]:
            for told in (run, self._parent(event)):
                self._runs.tag(told, {"elastic.exchange": choice_words(choice)})
        segment = self._segment(event)
        late = [o for o in reported if segment.committed(event.epoch, o.step)]
        if late:
            self._add(self._parent(event), (p for o in late for p in facts.curve_points(o, placed)))

    def _committed(self, event: Event) -> None:
        checkpoint, parent = checkpoint_of(event), self._parent(event)
        grant = self._grant(event)
        for observation in self._segment(event).newly_committed(self._feed, event, grant):
            self._add(parent, facts.curve_points(observation, facts.placed_figures(grant.payload)))
        timings = event.payload["timings"]
        spans = {name: value for name, value in timings.items() if not name.endswith(("_at", "_bytes"))}
        sizes = {name.removesuffix("_bytes"): value for name, value in timings.items() if name.endswith("_bytes")}
        measured = facts.prefixed("seconds", spans) | facts.prefixed("bytes", sizes)
        self._add(parent, facts.points(measured, checkpoint.committed_at, checkpoint.step))
        name = f"{self._jobs.job(event.job_id).spec.name}-step-{checkpoint.step}"
        self._runs.checkpoint_model(parent, name, checkpoint, {"elastic.job_id": event.job_id})

    def _segment_ended(self, event: Event) -> None:
        if event.epoch is None:
            return  # it never held a slot, so there was no attempt
        run, ending = self._attempt(event), event.payload
        values = {"elastic.end_reason": ending["reason"], "elastic.error": ending["error"]}
        self._runs.tag(run, {name: value for name, value in values.items() if value})
        self._runs.end(run, _SEGMENT_STATUS.get(SegmentState(ending["state"]), "FAILED"), event.at)

    def _job_ended(self, event: Event) -> None:
        job = self._jobs.job(event.job_id)
        lineage = _lineage_of(event, job)
        run = self._job_run(job, lineage)
        if event.payload["error"]:
            self._runs.tag(run, {"elastic.error": event.payload["error"]})
        self._runs.end(run, _JOB_STATUS[JobState(event.payload["state"])], event.at)
        self._end_given_up(event, run, lineage)

    def _end_given_up(self, event: Event, run: Run, lineage: int) -> None:
        """Nobody tells of the end of lineages that a rollback gave up while they trained."""
        for earlier in range(lineage):
            self._runs.end_running(run.experiment_id, _identity(event.job_id, earlier), "KILLED", event.at)

    def _results(self, event: Event) -> None:
        job, results = self._jobs.job(event.job_id), event.payload["results"]
        run = self._job_run(job, _lineage_of(event, job))
        # Results are told whole each time: a fixed time makes a value that was told before the same point.
        final = facts.prefixed("final", held_out(results))
        self._add(run, facts.points(final, job.submitted_at, 0))
        shown = {name: value for name, value in results.items() if name not in _TOLD_OTHERWISE}
        self._runs.tag_told(run, facts.flat("elastic", shown))
        self._runs.tag(run, {"mlflow.note.content": self._links(job)})

    def _exchange_fell_back(self, event: Event) -> None:
        fallback = from_json(ExchangeFallback, event.payload["fallback"])
        for told in (self._attempt(event), self._parent(event)):
            self._runs.tag(told, {"elastic.exchange_fallback": fallback_words(fallback)})

    def _note(self, event: Event) -> None:
        run = self._job_run(self._jobs.job(event.job_id))
        self._runs.tag_told(run, {f"elastic.note.{event.position}": event.payload["text"]})

    def _checkpoints_retired(self, event: Event) -> None:
        run = self._job_run(self._jobs.job(event.job_id))
        for uri in event.payload["uris"]:
            self._runs.retire_checkpoint(run.experiment_id, uri, event.payload["why"])

    def _segment(self, event: Event) -> Segment:
        segment_id = event.segment_id
        assert segment_id is not None, f"event {event.position} ({event.kind}) names no segment"
        return self._segments.get(segment_id, lambda: read_segment(self._feed, segment_id, event.position))

    def _grant(self, event: Event) -> Event:
        epoch = event.epoch
        grants = self._segment(event).grants
        if epoch is None or epoch not in grants:
            raise Refused(f"segment {event.segment_id} was never granted at epoch {epoch}, only at {sorted(grants)}")
        return grants[epoch]

    def _parent(self, event: Event) -> Run:
        lineage = int(self._grant(event).payload["lineage"])
        name = (event.job_id, lineage)
        return self._job_runs.get(name, lambda: self._open_job(self._jobs.job(event.job_id), lineage))

    def _job_run(self, job: JobStatus, lineage: int | None = None) -> Run:
        """Of this lineage, or of the one that the job is at."""
        number = job.lineage if lineage is None else lineage
        return self._job_runs.get((job.job_id, number), lambda: self._open_job(job, number))

    def _open_job(self, job: JobStatus, lineage: int) -> Run:
        spec, info = job.spec, job.facts
        run = self._runs.open(
            self._runs.experiment(facts.experiment_name(spec)),
            name=job.job_id if lineage == 0 else f"{job.job_id} (lineage {lineage})",
            identity=_identity(job.job_id, lineage),
            started_at=job.submitted_at,
            params={
                **facts.spec_params(spec),
                "total_samples": job.total_samples,
                "dataset_samples": info.dataset_samples,
                "num_parameters": info.num_parameters,
            },
            tags={
                "elastic.metric": f"{info.metric_mode} checkpoint/{info.metric}",
                **facts.group_tags(spec),
                **facts.flat(f"elastic.{FORK}", job.results.get(FORK)),
                "mlflow.note.content": self._links(job),
            },
        )
        if lineage == job.lineage and job.results.get("mlflow_run_id") != run.run_id:
            ids = {"mlflow_run_id": run.run_id, "mlflow_experiment_id": run.experiment_id}
            self._jobs.record_results(job.job_id, ids)
        return run

    def _attempt(self, event: Event) -> Run:
        return self._attempts.get(
            (event.segment_id, event.epoch), lambda: self._open_attempt(self._grant(event), self._parent(event))
        )

    def _open_attempt(self, grant: Event, parent: Run) -> Run:
        allocation, payload = from_json(Allocation, grant.payload["allocation"]), grant.payload
        assert grant.segment_id is not None
        link = facts.run_url(self._settings, "elastic_segment", grant.segment_id)
        return self._runs.open(
            parent.experiment_id,
            name=_attempt_name(payload, allocation),
            identity={"elastic.job_id": grant.job_id, "elastic.attempt": f"{grant.segment_id}@{grant.epoch}"},
            started_at=grant.at,
            params={
                **facts.allocation_params(allocation),
                **facts.placed_params(facts.placed_figures(payload)),
                "segment": payload["index"],
                "attempt": payload["attempt"],
                "epoch": grant.epoch,
                "start_step": payload["start_step"],
                "handed_over": payload["handed_over"],
            },
            tags={
                "elastic.segment_id": grant.segment_id,
                "elastic.reason": payload["reason"],
                "mlflow.note.content": f"{payload['reason']}\n\n[The segment in Airflow]({link})",
            },
            parent=parent,
        )

    def _links(self, job: JobStatus) -> str:
        """To Airflow's pages, as MLflow's UI shows them. Which run drives the job is known once its task has begun."""
        page = f"[The job on its page]({facts.page_url(self._settings, job.job_id)})"
        driver = job.results.get("airflow")
        if driver is None:
            return page
        return f"[The job in Airflow]({facts.run_url(self._settings, driver['dag_id'], driver['run_id'])}) · {page}"

    def _add(self, run: Run, points: Iterable[Metric]) -> None:
        self._points[run].extend(points)
        if len(self._points[run]) >= _FLUSH_AT:
            self._flush(run)

    def _flush(self, run: Run) -> None:
        self._runs.log(run, self._points.pop(run))


def _identity(job_id: str, lineage: int) -> dict[str, str]:
    return {"elastic.job_id": job_id, "elastic.lineage": str(lineage), "elastic.kind": "job"}


def _lineage_of(event: Event, job: JobStatus) -> int:
    """The job's at the time of the event, which it may have left since; ledgers of before do not say."""
    return int(event.payload.get("lineage", job.lineage))


def _attempt_name(grant: Mapping[str, Any], allocation: Allocation) -> str:
    again = f", attempt {grant['attempt'] + 1}" if grant["attempt"] else ""
    return f"segment {grant['index']}{again}: {allocation.num_slots} slots, batch {allocation.global_batch}"
