"""What ranks do together: one piece of work on each, whose fault is the fault of all, and memory that a host shares.

`Exchange` is an all-gather of bytes (a process group's). At each one the ranks report errors, so that what fails on one
rank fails on all, for the same reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from elastic_core.crashing import crash_here
from elastic_core.errors import BY_CODE, CorruptCheckpoint, ElasticError, InfrastructureError, UserError
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.layout import TensorMeta
from elastic_core.state.reshard import shared
from elastic_core.state.reshard.memories import Memory

T = TypeVar("T")
Exchange = Callable[[bytes], Sequence[bytes]]

SHARING = "Sharing memory"  # that failed
_KINDS: Mapping[str, type[ElasticError]] = {**BY_CODE, shared.CannotShare.code: shared.CannotShare}


def map_collectively(
    boxes: Mapping[int, Mapping[str, Box]],
    rank: int,
    metas: Mapping[str, TensorMeta],
    exchange: Exchange,
    folder: Path,
) -> dict[int, Memory]:
    """Memory for boxes, by rank of this rank's host, which all of them have mapped: zeros. Collective.

    It lives while a rank maps it and has no name: no crash leaves it behind. Raises `shared.CannotShare` on every rank
    alike.
    """
    made: list[int] = []

    def create() -> tuple[None, shared.Place]:
        made.append(shared.create(folder, boxes[rank], metas))
        return None, shared.place_of(made[0])

    def attach() -> tuple[dict[int, Memory], None]:
        crash_here("transfer.memory-made")
        return {other: shared.attach(places[other], boxes[other], metas) for other in boxes}, None

    try:
        places = [(path, device, inode) for path, device, inode in run_on_all_ranks(exchange, create, SHARING)[1]]
        new = run_on_all_ranks(exchange, attach, SHARING)[0]
    finally:
        for fd in made:
            os.close(fd)
    crash_here("transfer.mapped")
    return new


def run_on_all_ranks(exchange: Exchange, work: Callable[[], tuple[T, Any]], what: str) -> tuple[T, list[Any]]:
    """Do this rank's work; its result, and the message (JSON) of every rank's. Collective.

    A fault of any rank is raised on all, as the same class of error: a checkpoint that one rank found damaged is
    damaged for all, before anything else, and what the user got wrong comes before what may pass.
    """
    result: T | None = None
    message, code, fault = None, "", ""
    try:
        result, message = work()
    except ElasticError as error:
        code, fault = error.code, str(error) or type(error).__name__
    report = json.dumps({"code": code, "fault": fault, "message": message}, separators=(",", ":"))
    answers = [json.loads(data) for data in exchange(report.encode())]
    faults = [(rank, answer["code"], answer["fault"]) for rank, answer in enumerate(answers) if answer["code"]]
    if faults:
        raise _worst(faults, what)
    return cast(T, result), [answer["message"] for answer in answers]


def _worst(faults: Sequence[tuple[int, str, str]], what: str) -> ElasticError:
    kinds = [_KINDS.get(code, InfrastructureError) for _, code, _ in faults]
    for most_telling in (CorruptCheckpoint, UserError):
        for (_, _, fault), kind in zip(faults, kinds, strict=True):
            if issubclass(kind, most_telling):
                return kind(fault)
    texts = "; ".join(f"rank {rank}: {fault}" for rank, _, fault in faults)
    worst: type[ElasticError] = kinds[0] if len(set(kinds)) == 1 else InfrastructureError
    return worst(f"{what} failed: {texts}")
