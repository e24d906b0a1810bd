"""Ray's Jobs API (REST, https://docs.ray.io/en/latest/cluster/running-applications/job-submission/), by HTTP alone.

Every request carries the cluster's token. Each call is safe to repeat; Ray holds what was submitted. Nothing of Ray is
imported.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.settings import Settings

ANSWER_SECONDS = 30.0
MOST_OUTPUT_BYTES = 32 * 1024 * 1024  # of a driver that are read: a coordinator prints some 100 KiB
_ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
_EXISTS = "already exists"  # in the error's text: the API has no status of its own for it


@dataclass(frozen=True, slots=True, kw_only=True)
class RayJob:
    submission_id: str
    status: str  # PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    ended_at: float | None = None  # Unix seconds, by the clock of Ray's head

    @property
    def ended(self) -> bool:
        return self.status in _ENDED

    @staticmethod
    def of(answer: Mapping[str, Any]) -> RayJob:
        ended = answer.get("end_time")
        return RayJob(
            submission_id=answer.get("submission_id") or "", status=answer["status"],
            message=answer.get("message") or "", metadata=answer.get("metadata") or {},
            ended_at=ended / 1000 if ended else None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    submission_id: str
    entrypoint: str  # a command line
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)  # that the driver's node must have


class JobsApi:
    """Raises `InfrastructureError` where Ray does not answer, refuses the token or fails."""

    def __init__(self, settings: Settings) -> None:
        """Raises `UserError` where address or token are not set, or the token cannot be read."""
        if not settings.ray_address:
            raise UserError(
                "ELASTIC_LAUNCHER=ray needs ELASTIC_RAY_ADDRESS, the base URL of Ray's dashboard on its head node, "
                "such as http://10.0.0.1:8265"
            )
        self._address, self._token_file = settings.ray_address.rstrip("/"), settings.ray_token_file
        token = ray_token(settings)
        verify: ssl.SSLContext | bool = True
        if settings.ray_ca is not None:
            verify = ssl.create_default_context(cafile=settings.ray_ca)
        self._client = httpx.Client(
            base_url=self._address, headers={"authorization": f"Bearer {token}"}, timeout=ANSWER_SECONDS,
            verify=verify, trust_env=False,
        )  # fmt: skip

    def submit(self, submission: Submission) -> bool:
        """Whether it is new: False where there is one of this id."""
        body = {
            "submission_id": submission.submission_id, "entrypoint": submission.entrypoint,
            "metadata": dict(submission.metadata), "runtime_env": {"env_vars": dict(submission.env)},
        }  # fmt: skip
        if submission.labels:
            body["entrypoint_label_selector"] = dict(submission.labels)
        answer = self._send("POST", "/api/jobs/", json=body)
        if answer.status_code != httpx.codes.OK and _EXISTS in answer.text:
            return False
        self._require(answer, f"submit {submission.submission_id}")
        return True

    def job(self, submission_id: str) -> RayJob | None:
        answer = self._send("GET", _path(submission_id))
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        return RayJob.of(self._require(answer, f"look up {submission_id}").json())

    def jobs(self) -> list[RayJob]:
        """Those that were submitted by this API."""
        found = self._require(self._send("GET", "/api/jobs/"), "list jobs").json()
        return [RayJob.of(job) for job in found if job.get("submission_id")]

    def output(self, submission_id: str) -> str:
        """What the driver has printed; "" where that is not there (any more), as on a node that is gone, or is more
        than any driver of ours prints."""
        data = bytearray()
        with self._answers(), self._client.stream("GET", f"{_path(submission_id)}/logs") as answer:
            for part in answer.iter_bytes():
                data += part
                if len(data) > MOST_OUTPUT_BYTES:
                    return ""
        self._check_token(answer, data.decode(errors="replace"))
        if answer.status_code != httpx.codes.OK:
            return ""
        return str(json.loads(data).get("logs") or "")

    def stop(self, submission_id: str) -> None:
        """Have Ray ask a job's driver to end (SIGTERM), without waiting. One that has ended stays as it is."""
        answer = self._send("POST", f"{_path(submission_id)}/stop")
        if answer.status_code != httpx.codes.NOT_FOUND:
            self._require(answer, f"stop {submission_id}")

    def delete(self, submission_id: str) -> None:
        """Forget a job that has ended."""
        answer = self._send("DELETE", _path(submission_id))
        if answer.status_code != httpx.codes.NOT_FOUND:
            self._require(answer, f"delete {submission_id}")

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        with self._answers():
            answer = self._client.request(method, path, **more)
        self._check_token(answer, answer.text)
        return answer

    @contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise InfrastructureError(
                f"Ray does not answer at {self._address} ({type(error).__name__}: {error}); is its head node up, and "
                "is ELASTIC_RAY_ADDRESS the URL of its dashboard?"
            ) from error

    def _check_token(self, answer: httpx.Response, text: str) -> None:
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise InfrastructureError(
                f"Ray at {self._address} refuses the token in {self._token_file} ({answer.status_code}: "
                f"{text[:200]}). Put the token of the cluster there, as its nodes have it in "
                "RAY_AUTH_TOKEN_PATH, and nothing else"
            )

    def _require(self, answer: httpx.Response, what: str) -> httpx.Response:
        if answer.status_code != httpx.codes.OK:
            last = (answer.text.strip().splitlines() or [""])[-1]
            raise InfrastructureError(f"Ray at {self._address} did not {what}: {answer.status_code} {last[:500]}")
        return answer


def ray_token(settings: Settings) -> str:
    """Raises `UserError` where there is none."""
    path = settings.ray_token_file
    if path is None:
        raise UserError(
            "ELASTIC_LAUNCHER=ray needs ELASTIC_RAY_TOKEN_FILE, a file with the token of the Ray cluster "
            "(RAY_AUTH_MODE=token): without one, whoever reaches Ray's ports may run any code on its nodes"
        )
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise UserError(f"ELASTIC_RAY_TOKEN_FILE={path} cannot be read: {error.strerror}") from error
    if not token:
        raise UserError(f"ELASTIC_RAY_TOKEN_FILE={path} is empty; it holds the token of the Ray cluster")
    return token


def _path(submission_id: str) -> str:
    return f"/api/jobs/{quote(submission_id, safe='')}"
