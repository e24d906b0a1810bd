"""What the nodes of one group tell each other, as files of their run dirs: out of one, into the others.

`host.rundir` is a mailbox for processes of one host. Over several hosts each node has its own, and the group's
coordinator carries: the order in force, the request for standby workers and the rendezvous, which rank 0 writes
wherever it is; and of each node, under names that end in its own (`...@NODE.json`), which standby workers wait and
which workers live there. Pids of another node say nothing here, so a node takes away what is not true any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import (
    ORDER,
    NodeWorkers,
    Rendezvous,
    StandbyReady,
    StandbyRequest,
    WorkerProcesses,
    decode,
    encode,
)
from elastic_core.host.rundir import RunDir

SHARED = (ORDER, StandbyRequest.FILE, Rendezvous.FILE)  # in the order in which they are to be read
_OF_A_NODE = re.compile(r"(waiting-[0-9]+|workers)@[a-z0-9.-]+\.json")


def outgoing(folder: RunDir, node: str) -> dict[str, str]:
    """All that others should have of this node's mailbox, as text by the name that it has there."""
    values: dict[str, Any] = {name: folder.read_json(name, owners_only=False) for name in SHARED}
    workers = folder.read(WorkerProcesses)
    if workers is not None:
        values[NodeWorkers.FILE.format(node)] = encode(
            NodeWorkers(tuple(replace(worker, host=node) for worker in workers.workers))
        )
    for path in folder.path.glob(StandbyReady.FILE.format("*")):
        number = path.stem.rpartition("-")[2]
        waiting = folder.read(StandbyReady, number) if number.isdigit() else None
        if waiting is not None and waiting.process.alive():
            values[StandbyReady.FILE.format(f"{number}@{node}")] = encode(replace(waiting, host=node))
    return {name: json.dumps(value) for name, value in values.items() if value is not None}


def put(folder: RunDir, letters: Mapping[str, str | None]) -> None:
    """Put letters of other nodes into a mailbox; None takes one away. Raises `InfrastructureError` for other names."""
    for name in sorted(letters, key=lambda name: SHARED.index(name) if name in SHARED else len(SHARED)):
        if name not in SHARED and not _OF_A_NODE.fullmatch(name):
            raise InfrastructureError(f"{name!r} is no letter between nodes")
        text = letters[name]
        if text is None:
            (folder.path / name).unlink(missing_ok=True)
        else:
            folder.write_json(name, json.loads(text))


class PostOffice:
    """The coordinator's side: what is in force, and who has what already. Holds no file."""

    def __init__(self) -> None:
        self.shared: dict[str, str] = {}
        self._seen: dict[str, dict[str, str]] = {}  # by node: of the shared letters, what it has
        self._own: dict[str, dict[str, str]] = {}  # by node: what it says of itself
        self._given: dict[str, dict[str, str]] = {}  # by node: what it has of the others'

    def collect(self, node: str, letters: Mapping[str, str]) -> None:
        """What a node has in its mailbox now. A shared letter that differs from what we know there is new."""
        seen = self._seen.setdefault(node, {})
        for name in SHARED:
            if name in letters and letters[name] != seen.get(name):
                self.shared[name] = seen[name] = letters[name]
        self._own[node] = {name: text for name, text in letters.items() if name not in SHARED}

    def due(self, node: str) -> dict[str, str | None]:
        """What this node has not yet; None for what it should have no more."""
        seen, given = self._seen.get(node, {}), self._given.get(node, {})
        letters: dict[str, str | None] = {name: text for name, text in self.shared.items() if seen.get(name) != text}
        others = self._others(node)
        letters |= {name: text for name, text in others.items() if given.get(name) != text}
        letters |= dict.fromkeys(given.keys() - others.keys())
        return letters

    def delivered(self, node: str, letters: Mapping[str, str | None]) -> None:
        seen, given = self._seen.setdefault(node, {}), self._given.setdefault(node, {})
        for name, text in letters.items():
            if text is None:
                given.pop(name, None)
            else:
                (seen if name in SHARED else given)[name] = text

    def leave(self, node: str) -> None:
        """A node that has no part in the group any more, and says nothing of itself."""
        for known in (self._seen, self._own, self._given):
            known.pop(node, None)

    def is_clear(self, node: str, slot: str) -> bool:
        """Nothing is left on this slot of a node, as its agent said last."""
        text = self._own.get(node, {}).get(NodeWorkers.FILE.format(node))
        return text is not None and slot not in {one.slot for one in decode(NodeWorkers, json.loads(text)).workers}

    def _others(self, node: str) -> dict[str, str]:
        return {name: text for other, own in self._own.items() if other != node for name, text in own.items()}
