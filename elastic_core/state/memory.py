"""The nodes' memory in front of the checkpoint store: what a job's ranks wrote last is read from there, if it is there.

Each node has a keeper (`launch.keeper`), which outlives the processes that train. Files go to the store as ever and,
as they pass, into the memory of their writer's node; after a commit other nodes' keepers fetch copies of them. Reading
looks into its own node's memory, other nodes', the store, and checks the same checksums whichever it was. Whatever goes
wrong with the memory is said, and then the store is asked: training never depends on it. Needs no torch.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from elastic_core.errors import InfrastructureError
from elastic_core.state.buffers import first, size_of
from elastic_core.state.contract import CheckpointStore, Entry, Source
from elastic_core.state.keeper_client import FAULTS, Access, Borrowed, KeeperClient, new_file, seal, write_all
from elastic_core.state.paths import CheckpointPath

CLOSE_SECONDS = 2.0
REST_SECONDS = 60.0  # in which a keeper that hangs costs no second wait
ROOM_BYTES = 16 << 20  # that are reserved ahead, if they are free

Say = Callable[[str], None]


def holders(job_nodes: Iterable[str], nodes: Iterable[str], copies: int) -> dict[str, tuple[str, ...]]:
    """Which nodes keep copies of what each of a job's nodes wrote: the next ones of the job's, then others, in a ring.

    Fewer than `copies` where there are no more nodes.
    """
    ring = sorted(set(job_nodes))
    others = sorted(set(nodes) - set(ring))
    return {node: (*ring[i + 1 :], *ring[:i], *others)[:copies] for i, node in enumerate(ring)}


class NodeMemory:
    """The memory of all nodes, as one rank of a job sees it: its own node's, and the others'. Never raises."""

    def __init__(self, access: Access, node: str, copies: int, say: Say | None = None) -> None:
        self._access, self._node, self._copies = access, node, copies
        self._say = say or _print
        self._said: set[str] = set()
        self._clients = {name: KeeperClient(access, name, near=name == node) for name in {node, *access.nodes}}
        self._lock = threading.Lock()
        self._index: tuple[str, dict[str, dict[str, int]]] = "", {}  # of one checkpoint: key -> size by node
        self._lost: set[str] = set()  # nodes that are not asked again for that checkpoint
        self._served: set[str] = set()  # keys that came from memory
        self._doubted: set[str] = set()  # and those that came damaged
        self._taken: Counter[str] = Counter()
        self._telling: list[threading.Thread] = []
        self._not_before = 0.0  # when to write into memory again, after a keeper that was gone or hung

    def writing(self, key: str) -> Writing | None:
        """Something to add the bytes of a file to, as they are written; None for what is not kept."""
        if not self._ours(key) or time.monotonic() < self._not_before:
            return None
        return Writing(self._clients[self._node], key, self._not_kept)

    def size(self, key: str) -> int | None:
        found = self._places(key)
        return next(iter(found.values()), None)

    def read(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int | None:
        """As `CheckpointStore.read_into`, from the first memory that gives it; None if none does."""
        for node, size in self._places(key).items():
            wanted = first(buffers, size - offset)
            try:
                self._clients[node].read(key, offset, wanted)
            except FAULTS as error:
                with self._lock:
                    self._lost.add(node)
                self._tell(f"the memory of node {node} cannot be read: {_why(error)}")
                continue
            num = size_of(wanted)
            with self._lock:
                self._served.add(key)
                self._taken["own_node" if node == self._node else "other_nodes"] += num
            return num
        return None

    def doubt(self, key: str, why: str) -> bool:
        """As `Layered.doubt`."""
        with self._lock:
            self._doubted.add(key)
            served = key in self._served
        if served:
            self._tell(f"{key} is damaged in memory and read from the store instead: {why}")
        return served

    def stored(self, num_bytes: int) -> None:
        """So many bytes came from the store."""
        with self._lock:
            self._taken["store"] += num_bytes

    def taken(self) -> dict[str, int]:
        """Bytes read since the last call: `own_node`, `other_nodes`, `store`."""
        with self._lock:
            taken, self._taken = self._taken, Counter()
        return {source: taken[source] for source in ("own_node", "other_nodes", "store")}

    def committed(self, uri: str, job_nodes: Sequence[str]) -> None:
        """Ranks on these nodes wrote this checkpoint, and it is the job's latest now: have it copied, older ones
        dropped. Does not wait."""
        copies = holders(job_nodes, self._access.nodes, self._copies)
        self._tell_all(lambda node: {"op": "committed", "uri": uri, "copy": [n for n in copies if node in copies[n]]})

    def finished(self) -> None:
        """Nothing of this job is needed any more. Does not wait."""
        self._tell_all(lambda _: {"op": "drop"})

    def close(self) -> None:
        """Waits a little for what the keepers are still being told."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._telling:
            thread.join(max(0.0, deadline - time.monotonic()))
        for client in self._clients.values():
            client.close()

    def _ours(self, key: str) -> bool:
        path = CheckpointPath.parse(key.rpartition("/")[0])
        return path is not None and path.job_id == self._access.job

    def _places(self, key: str) -> dict[str, int]:
        """Nodes that have a file, this one first, and its size."""
        if not self._ours(key):
            return {}
        uri = key.rpartition("/")[0]
        with self._lock:
            if self._index[0] != uri:
                self._lost = set()
                self._index = uri, self._ask_all(uri)
            found = self._index[1].get(key, {}) if key not in self._doubted else {}
            return {node: found[node] for node in found if node not in self._lost}

    def _ask_all(self, uri: str) -> dict[str, dict[str, int]]:
        index: dict[str, dict[str, int]] = {}
        listed = self._all(lambda _: {"op": "list", "uri": uri})
        for node in sorted(listed, key=lambda name: (name != self._node, name)):
            for key, size in listed[node].items():
                index.setdefault(key, {})[node] = size
        return index

    def _not_kept(self, error: BaseException) -> None:
        if not isinstance(error, InfrastructureError):
            self._not_before = time.monotonic() + REST_SECONDS
        self._tell(f"not kept in memory: {_why(error)}")

    def _tell_all(self, request: Callable[[str], dict[str, Any]]) -> None:
        thread = threading.Thread(target=self._all, args=(request,), name="tell-keepers", daemon=True)
        self._telling = [*(one for one in self._telling if one.is_alive()), thread]
        thread.start()

    def _all(self, request: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """Ask every node at once; the answers of those that gave one."""

        def ask(client: KeeperClient) -> Any:
            try:
                return client.ask(**request(client.node))
            except FAULTS as error:
                self._tell(f"the keeper of node {client.node} does not answer: {_why(error)}")
                return None

        with ThreadPoolExecutor(len(self._clients), thread_name_prefix="ask-keeper") as pool:
            answers = dict(zip(self._clients, pool.map(ask, self._clients.values()), strict=True))
        return {node: answer for node, answer in answers.items() if answer is not None}

    def _tell(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)


class Writing:
    """A file on its way into the memory of this node. A fault ends the keeping, is told, and harms nothing else."""

    def __init__(self, client: KeeperClient, key: str, failed: Callable[[BaseException], None]) -> None:
        self._key, self._failed = key, failed
        self._borrowed: Borrowed | None = None
        self._fd = -1
        self._room = 0
        try:
            self._borrowed = client.borrow()
            self._fd = new_file()
        except FAULTS as error:
            self._give_up(error)

    def add(self, data: bytes | memoryview) -> None:
        if self._borrowed is None:
            return
        try:
            size = memoryview(data).nbytes
            if size > self._room:
                uri = self._key.rpartition("/")[0]
                need = {"bytes": size - self._room, "ahead": ROOM_BYTES}
                self._room += self._borrowed.ask({"op": "reserve", "uri": uri, **need})
            write_all(self._fd, data)
            self._room -= size
        except FAULTS as error:
            self._give_up(error)

    def done(self) -> None:
        """The file is whole, and in the store."""
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is None:
            return
        try:
            with borrowed:
                seal(self._fd)
                borrowed.keep(self._key, self._fd)
        except FAULTS as error:
            self._failed(error)
        finally:
            os.close(self._fd)

    def close(self) -> None:
        """If it is not done, it will not be."""
        if self._borrowed is None:
            return
        self._borrowed.channel.close()  # its room is given back with it
        self._borrowed = None
        if self._fd >= 0:
            os.close(self._fd)

    def _give_up(self, error: BaseException) -> None:
        self._failed(error)
        self.close()


class StoreWithMemory:
    """See `CheckpointStore`: `store`, with the nodes' memory in front of it for the job's own checkpoints."""

    def __init__(self, store: CheckpointStore, memory: NodeMemory) -> None:
        self._store, self._memory = store, memory
        self.url = store.url

    def put(self, key: str, source: Source) -> None:
        writing = self._memory.writing(key)
        if writing is None or isinstance(source, Path):
            self._store.put(key, source)
            return
        with closing(writing):
            if isinstance(source, bytes):
                self._store.put(key, source)
                writing.add(source)
            else:
                self._store.put(key, _passing(source, writing))
            writing.done()

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        size = self._memory.size(key)
        if size is not None:
            data = bytearray(max(0, min(size - offset, size if length is None else length)))
            if self._memory.read(key, offset, [memoryview(data)]) is not None:
                return bytes(data)
        found = self._store.get(key, offset, length)
        self._memory.stored(len(found))
        return found

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        num = self._memory.read(key, offset, buffers)
        if num is None:
            num = self._store.read_into(key, offset, buffers)
            self._memory.stored(num)
        return num

    def doubt(self, key: str, why: str) -> bool:
        return self._memory.doubt(key, why)

    def size(self, key: str) -> int | None:
        return self._store.size(key)

    def list(self, prefix: str) -> Iterable[str]:
        return self._store.list(prefix)

    def entries(self, prefix: str) -> Iterable[Entry]:
        return self._store.entries(prefix)

    def unfinished(self, prefix: str) -> Iterable[Entry]:
        return self._store.unfinished(prefix)

    def delete(self, prefix: str) -> None:
        self._store.delete(prefix)


def _passing(source: Iterable[memoryview], writing: Writing) -> Iterator[memoryview]:
    for data in source:
        writing.add(data)
        yield data


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _print(text: str) -> None:
    print(f"elastic: {text}", file=sys.stderr, flush=True)
