"""Jobs at risk, told to the notifiers once per job and kind of risk: what reconciliation does every minute.

What was told is kept with the job's results, so that whichever process looks next knows it. A risk that is over for
`CALM_SECONDS` is forgotten, and told again if it comes back; within that time it may come and go unsaid.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from elastic_airflow.names import AT_RISK
from elastic_airflow.notifications.job_news import risk_news, tell
from elastic_core.protocol.outlook.at_risk import Risk, risks
from elastic_core.protocol.records import JobStatus

if TYPE_CHECKING:
    from elastic_core.protocol.http_client import HttpControl

CALM_SECONDS = 900.0
TURN_SECONDS = 60.0  # that telling may take in all; what is not told by then is told the next minute
TOLD, CALM = "told_at", "calm_since"  # Unix seconds, of what is kept of each risk

Kept = Mapping[str, Mapping[str, float]]  # by `Risk`


def noticed(kept: Kept, at_risk: Sequence[Risk], now: float) -> tuple[dict[str, dict[str, float]], list[Risk]]:
    """What is to be kept of a job's risks after a look at `now` (Unix seconds), and which of them are to be told."""
    after: dict[str, dict[str, float]] = {}
    to_tell = []
    for risk in Risk:
        before = kept.get(risk.value)
        if risk in at_risk:
            after[risk.value] = {TOLD: now if before is None else before[TOLD]}
            if before is None:
                to_tell.append(risk)
        elif before is not None:
            calm_since = before.get(CALM, now)
            if now - calm_since < CALM_SECONDS:
                after[risk.value] = {TOLD: before[TOLD], CALM: calm_since}
    return after, to_tell


def tell_of_risks(
    control: HttpControl, notifiers: Sequence[BaseNotifier], context: Mapping[str, Any], log: Any
) -> list[str]:
    """Looks at all active jobs. Returns what was told, in words. A risk that no notifier could be told of is told anew
    the next time."""
    if not notifiers:
        return []
    told: list[str] = []
    until = time.monotonic() + TURN_SECONDS
    for job in control.jobs(active_only=True):
        if time.monotonic() > until:
            log.warning("notifiers took more than %g s: the other jobs are looked at the next time", TURN_SECONDS)
            break
        told += _tell_of_job(control, job, notifiers, context, log)
    return told


def _tell_of_job(
    control: HttpControl, job: JobStatus, notifiers: Sequence[BaseNotifier], context: Mapping[str, Any], log: Any
) -> list[str]:
    now, kept = time.time(), job.results.get(AT_RISK, {})
    found = risks(job, now)
    after, to_tell = noticed(kept, list(found), now)
    told = []
    for risk in to_tell:
        news = risk_news(job, risk, found[risk])
        if len(tell(notifiers, news, context, log)) < len(notifiers):
            told.append(f"told of: {news.message}")
        else:
            del after[risk.value]
    if after != kept:
        control.record_results(job.job_id, {AT_RISK: after})
    return told
