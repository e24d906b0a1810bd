"""What is wrong with a filled form of `elastic_job` is said where it was filled in, and no run is started.

Airflow judges each field of a form by itself. What several of them come to, and names of fields that there are not, it
would take, and the run's first task refuse. So the request that starts a run is looked at on its way to Airflow: a job
that cannot be is refused with the words that the task would have for it. What cannot be judged here goes on, and the
task judges it: a run that attaches to a job, presets that another host has, the pool and the task's own code.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import structlog
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elastic_airflow.names import JOB_DAG
from elastic_core.errors import UserError
from elastic_core.settings import Settings
from elastic_core.spec import entry_points
from elastic_core.spec.catalogue.task_params import entries_for
from elastic_core.spec.form import JOB_ID, NO_PRESET, PRESET, spec_from_form
from elastic_core.spec.inputs.presets import find_presets

ROUTE = f"/api/v2/dags/{JOB_DAG}/dagRuns"
MOST_BYTES = 2 * 2**20  # of a form that is judged
NO_FORM = b"[]"  # which Airflow refuses, once it has let in who sends it
log = structlog.get_logger(__name__)


class FormCheck:
    """ASGI middleware before Airflow's routes. Every other request passes it untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(ROUTE):
            await self._app(scope, receive, send)
            return
        body, read = await _read(receive)
        problem = None if body is None else await asyncio.to_thread(problem_of, body)
        if problem is None:
            await self._app(scope, _again(read, receive), send)
        else:
            await self._refuse(problem, scope, receive, send)

    async def _refuse(self, problem: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Airflow says whether the sender may start runs at all; who may not is told that, and nothing of the form."""
        told: list[Message] = []

        async def keep(message: Message) -> None:
            told.append(message)

        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        asked = {**scope, "headers": [*headers, (b"content-length", str(len(NO_FORM)).encode())]}
        await self._app(asked, _again([{"type": "http.request", "body": NO_FORM}], receive), keep)
        if told and told[0].get("status") == 422:
            await JSONResponse({"detail": problem}, status_code=422)(scope, receive, send)
            return
        for message in told:
            await send(message)


def problem_of(body: bytes) -> str | None:
    """What is wrong with the form in the body of a request; None where nothing is, or it is not to be judged here."""
    try:
        form = json.loads(body)["conf"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # Airflow says what is wrong with the request
    if not isinstance(form, dict) or form.get(JOB_ID):
        return None
    try:
        _judge(form, Settings())
    except UserError as refusal:
        return str(refusal)
    except Exception:
        log.exception("a form could not be judged before its run: the run's first task judges it")
    return None


def _judge(form: Mapping[str, Any], settings: Settings) -> None:
    """Raises `UserError`."""
    presets = find_presets(settings.project)
    chosen = form.get(PRESET) or NO_PRESET
    if chosen != NO_PRESET and not presets:
        return  # this host has no project; the one that runs tasks does
    entries = entries_for(form, settings.project, settings.tasks)
    spec = spec_from_form(form, presets, entries)
    entry_points.check(spec.entry_point, settings.tasks)


async def _read(receive: Receive) -> tuple[bytes | None, list[Message]]:
    """The body, None of one that is too large, and the messages that were read for it."""
    read: list[Message] = []
    size, more = 0, True
    while more and size <= MOST_BYTES:
        message = await receive()
        read.append(message)
        size += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
    body = b"".join(message.get("body", b"") for message in read)
    return (body if size <= MOST_BYTES else None), read


def _again(read: list[Message], receive: Receive) -> Receive:
    """These messages first, and then what comes."""
    left = iter(read)

    async def next_message() -> Message:
        for message in left:
            return message
        return await receive()

    return next_message
