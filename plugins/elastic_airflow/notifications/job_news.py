"""What a notifier is told of a job, and the telling: each with a copy of its own, in a bounded time, none for another.

A notifier gets Airflow's context of the run or task that tells, and in it under `elastic` a `JobNews`: in a template
`{{ elastic.message }}`, `{{ elastic.job_id }}`, `{{ elastic.links.Run }}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Thread
from typing import Any

from airflow.sdk import BaseNotifier
from airflow.sdk.configuration import conf

from elastic_airflow.links import PageLink, links_of
from elastic_core.protocol.outlook.at_risk import Risk
from elastic_core.protocol.records import JobStatus

KEY = "elastic"  # of the context
NOTIFY_SECONDS = 20.0  # that one notifier has, of the `dag_file_processor_timeout` of all callbacks of a DAG file


class Event(StrEnum):
    """What happened."""

    FINISHED = "finished"
    FAILED = "failed"  # or cancelled, or refused, or trained and not registered: `state` and `error` say so
    DEADLINE = "deadline at risk"
    BUDGET = "budget at risk"
    APPROVAL = "approval asked"  # of a retraining pipeline: a better model waits for a person's word


_END = {True: "is {state} at step {step}", False: "is {state}, and its run has failed"}
_OF_RISK = {Risk.DEADLINE: Event.DEADLINE, Risk.BUDGET: Event.BUDGET}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNews:
    event: Event
    message: str  # one sentence
    job_id: str | None = None  # None where a run ended before it had a job
    name: str = ""  # of the job's spec
    state: str = ""  # of the job: active, finished, failed, cancelled; "" where there is none, or nobody could say
    error: str = ""  # the last line of the job's traceback, why it was cancelled or refused; "" where all is well
    links: Mapping[str, str] = field(
        default_factory=dict
    )  # URLs: Page, Segments; Run of one that ended or asks, Approve of one that asks, MLflow if it is there


def ended_news(job: JobStatus, succeeded: bool, links: Mapping[str, str]) -> JobNews:
    """Of a run that ended with this job. `links`: beside the job's own."""
    words = f"job {job.job_id} ({job.spec.name}) {_END[succeeded].format(state=job.state, step=job.step)}"
    error = "" if succeeded else job.error or ""
    return JobNews(
        event=Event.FINISHED if succeeded else Event.FAILED,
        message=words + (f": {error}" if error else ""),
        job_id=job.job_id,
        name=job.spec.name,
        state=str(job.state),
        error=error,
        links={**_job_links(job), **links},
    )


def risk_news(job: JobStatus, risk: Risk, why: str) -> JobNews:
    return JobNews(
        event=_OF_RISK[risk],
        message=f"job {job.job_id} ({job.spec.name}) may miss its {risk}: {why}",
        job_id=job.job_id,
        name=job.spec.name,
        state=str(job.state),
        links=_job_links(job),
    )


def approval_news(question: str, job_id: str, job: JobStatus | None, links: Mapping[str, str]) -> JobNews:
    """Of a run that waits for a person. `job`: that trained the model, None where nobody could say."""
    return JobNews(
        event=Event.APPROVAL,
        message=question,
        job_id=job_id,
        name=job.spec.name if job is not None else "",
        state=str(job.state) if job is not None else "",
        links={**(_job_links(job) if job is not None else {}), **links},
    )


def run_link(dag_id: str, run_id: str) -> dict[str, str]:
    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return {"Run": f"{base}/dags/{dag_id}/runs/{run_id}"}


def _job_links(job: JobStatus) -> dict[str, str]:
    urls = links_of(job)
    page = {"Page": urls.pop(PageLink.name)}
    return {name: url for name, url in (page | urls).items() if url}


def tell(
    notifiers: Sequence[BaseNotifier], news: JobNews, context: Mapping[str, Any], log: Any,
    seconds: float = NOTIFY_SECONDS,
) -> list[str]:  # fmt: skip
    """Every notifier, one after the other. Returns what went wrong, in words, which is logged: one for each notifier
    that raised, or took longer than `seconds` and is left to itself then."""
    failures = []
    for notifier in notifiers:
        raised: list[Exception] = []
        # A copy: a notifier's templates are rendered in place, and the next job's news are others.
        given = (copy(notifier), {**context, KEY: news}, raised, log)
        thread = Thread(target=copy_context().run, args=(_notify, *given), name="notifier", daemon=True)
        thread.start()
        thread.join(seconds)
        if raised:
            failures.append(f"{type(notifier).__name__}: {type(raised[0]).__name__}: {raised[0]}")
        elif thread.is_alive():
            log.error("notifier %s has not ended within %g s: %r", type(notifier).__name__, seconds, news.message)
            failures.append(f"{type(notifier).__name__}: not ended within {seconds:g} s")
    return failures


def _notify(notifier: BaseNotifier, context: dict[str, Any], raised: list[Exception], log: Any) -> None:
    try:
        notifier(context)
    except Exception as error:  # whatever the operator's own code does
        log.exception("notifier %s has failed on %r", type(notifier).__name__, context[KEY].message)
        raised.append(error)
