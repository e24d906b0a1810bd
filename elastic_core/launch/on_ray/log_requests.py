"""What a worker prints, from the agent of Ray on its node: ranges of a file, over HTTP with the cluster's token."""

from __future__ import annotations

import re

import httpx

from elastic_core.errors import InfrastructureError
from elastic_core.launch.worker_logs.parts import LogPart, whole_lines

ANSWER_SECONDS = 10.0
_RANGE = re.compile(r"bytes (?:([0-9]+)-[0-9]+|\*)/([0-9]+)")


def read(url: str, token: str, after: int | None, most: int) -> LogPart:
    """As `parts.read_part` of a file here. Raises `InfrastructureError` where the node's agent does not answer.

    The oldest of a log that was over its size is a hole, which reads as zeros: they are no text, and are left out.
    """
    wanted = f"bytes=-{most}" if after is None else f"bytes={after}-{after + most - 1}"
    try:
        answer = httpx.get(
            url, headers={"authorization": f"Bearer {token}", "range": wanted}, timeout=ANSWER_SECONDS, trust_env=False
        )
    except httpx.HTTPError as error:
        raise InfrastructureError(f"the log at {url} cannot be read: {type(error).__name__}: {error}") from error
    if answer.status_code == httpx.codes.NOT_FOUND:
        return LogPart("", 0, 0, 0)
    told = _RANGE.fullmatch(answer.headers.get("content-range", ""))
    if told is not None and told[1] is None:  # nothing from there on
        size = int(told[2])
        return LogPart("", size, size, size)
    if told is None:
        if answer.status_code == httpx.codes.OK and not answer.content:
            return LogPart("", 0, 0, 0)
        raise InfrastructureError(f"the log at {url} cannot be read: {answer.status_code} {answer.text[:200]}")
    start, size = int(told[1]), int(told[2])
    data = answer.content
    kept = data.lstrip(b"\0")
    return whole_lines(kept, start + len(data) - len(kept), start, size, from_end=after is None)
