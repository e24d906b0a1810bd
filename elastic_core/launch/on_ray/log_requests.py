"""What a worker prints, from the agent of Ray on its node: ranges of a file, over HTTP with the cluster's token. Where
the node does not answer, or has come again without the file, what is kept in the store."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

import httpx

from elastic_core.errors import InfrastructureError
from elastic_core.launch.worker_logs.kept import KeptLog
from elastic_core.launch.worker_logs.parts import NOTHING, LogPart, whole_lines

ANSWER_SECONDS = 10.0
_RANGE = re.compile(r"bytes (?:([0-9]+)-[0-9]+|\*)/([0-9]+)")


@dataclass(frozen=True, slots=True)
class NodeLog:
    """At a URL, which is its name, too. `token`: the cluster's; `kept`: what is left of it without the node."""

    name: str
    token: str = field(repr=False)
    kept: KeptLog = field(repr=False)

    def read(self, after: int | None, most: int, most_lines: int | None = None) -> LogPart:
        try:
            return read(self.name, self.token, after, most, most_lines)
        except (InfrastructureError, FileNotFoundError) as error:
            with suppress(FileNotFoundError):
                return self.kept.read(after, most, most_lines)
            if isinstance(error, InfrastructureError):
                raise
            return NOTHING


def read(url: str, token: str, after: int | None, most: int, most_lines: int | None = None) -> LogPart:
    """As `parts.read_part` of a file here. Raises `FileNotFoundError` where the node has no such file, and
    `InfrastructureError` where its agent does not answer.

    The oldest of a log that was over its size is a hole, which reads as zeros: they are no text, and are left out.
    """
    wanted = f"bytes=-{most}" if after is None else f"bytes={after}-{after + most - 1}"
    try:
        answer = _client().get(url, headers={"authorization": f"Bearer {token}", "range": wanted})
    except httpx.HTTPError as error:
        raise InfrastructureError(f"the log at {url} cannot be read: {type(error).__name__}: {error}") from error
    if answer.status_code == httpx.codes.NOT_FOUND:
        raise FileNotFoundError(url)
    told = _RANGE.fullmatch(answer.headers.get("content-range", ""))
    if told is not None and told[1] is None:  # nothing from there on
        size = int(told[2])
        return LogPart("", size, size, size)
    if told is None:
        if answer.status_code == httpx.codes.OK and not answer.content:
            return NOTHING
        raise InfrastructureError(f"the log at {url} cannot be read: {answer.status_code} {answer.text[:200]}")
    start, size = int(told[1]), int(told[2])
    data = answer.content
    kept = data.lstrip(b"\0")
    first = start + len(data) - len(kept)
    return whole_lines(kept, first, start, size, from_end=after is None, most_lines=most_lines)


@cache
def _client() -> httpx.Client:
    """One for all logs: followers ask every few seconds. Safe to use from many threads."""
    return httpx.Client(timeout=ANSWER_SECONDS, trust_env=False)
