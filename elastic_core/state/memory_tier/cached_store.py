"""The in-memory checkpoint tier in front of the store: a job reads what its ranks wrote last from memory, if it can.

Each node has a cache server (`state.memory_tier.cache_server`), which outlives the processes that train. Files go to
the store as ever and, as they pass, into the cache of their writer's node; after a commit the cache servers of other
nodes fetch copies. A read asks its own node's cache, other nodes', then the store, and checks the same checksums
whichever it was. What goes wrong with a cache is logged, and the store is asked instead: training never depends on it.
The idea is that of Gemini (Wang et al., SOSP 2023). Needs no torch.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from elastic_core.errors import InfrastructureError
from elastic_core.state.buffers import first, size_of
from elastic_core.state.memory_tier.cache_client import (
    FAULTS,
    Access,
    Borrowed,
    CacheClient,
    new_file,
    seal,
    write_all,
)
from elastic_core.state.stores.paths import CheckpointPath
from elastic_core.state.stores.store import CheckpointStore, Entry, HostFile, Source, host_file

CLOSE_SECONDS = 2.0
REST_SECONDS = 60.0  # in which a cache server that hangs costs no second wait
ROOM_BYTES = 16 << 20  # that are reserved ahead, if they are free

Report = Callable[[str], object]


def holders(job_nodes: Iterable[str], nodes: Iterable[str], copies: int) -> dict[str, tuple[str, ...]]:
    """Which nodes cache copies of what each of a job's nodes wrote: the next ones of the job's, then others, in a ring.

    Fewer than `copies` where there are no more nodes.
    """
    ring = sorted(set(job_nodes))
    others = sorted(set(nodes) - set(ring))
    return {node: (*ring[i + 1 :], *ring[:i], *others)[:copies] for i, node in enumerate(ring)}


class MemoryTier:
    """The caches of all nodes, as one rank of a job sees them: its own node's, and the others'. Never raises.

    `report` gets each kind of fault once; by default it is logged. `reread` gives the access as it is now: nodes may
    have come since that hold copies, or gone.
    """

    def __init__(
        self, access: Access, node: str, copies: int, report: Report | None = None,
        reread: Callable[[], Access | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._access, self._node, self._copies = access, node, copies
        self._report = report or logging.getLogger(__name__).warning
        self._reread = reread
        self._reported: set[str] = set()
        self._clients = {name: CacheClient(access, name, near=name == node) for name in {node, *access.nodes}}
        self._lock = threading.Lock()
        self._index: tuple[str, dict[str, dict[str, int]]] = "", {}  # of one checkpoint: key -> size by node
        self._lost: set[str] = set()  # nodes that are not asked again for that checkpoint
        self._served: set[str] = set()  # keys that came from a cache
        self._doubted: set[str] = set()  # and those that came damaged
        self._bytes_by_source: Counter[str] = Counter()
        self._notifying: list[threading.Thread] = []
        self._not_before = 0.0  # when to write into the cache again, after a cache server that was gone or hung

    def writing(self, key: str) -> CacheWriter | None:
        """Something to add the bytes of a file to, as they are written; None for what is not cached."""
        if not self._of_this_job(key) or time.monotonic() < self._not_before:
            return None
        return CacheWriter(self._clients[self._node], key, self._report_not_cached)

    def size(self, key: str) -> int | None:
        return next(iter(self._nodes_with(key).values()), None)

    def read(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int | None:
        """As `CheckpointStore.read_into`, from the first cache that gives it; None if none does."""
        for node, size in self._nodes_with(key).items():
            filled = first(buffers, size - offset)
            try:
                self._clients[node].read(key, offset, filled)
            except FAULTS as error:
                self._lose(node, error)
                continue
            num = size_of(filled)
            with self._lock:
                self._served.add(key)
            self._count("own_node" if node == self._node else "other_nodes", num)
            return num
        return None

    def host_file(self, key: str) -> HostFile | None:
        """As `OnHost.host_file`: what this node's cache has. None if none or only another node's does."""
        if self._node not in self._nodes_with(key):
            return None
        try:
            fd = self._clients[self._node].open(key)
        except FAULTS as error:
            self._lose(self._node, error)
            return None
        with self._lock:
            self._served.add(key)
        return HostFile(fd, os.fstat(fd).st_size, lambda num_bytes: self._count("own_node", num_bytes))

    def holds(self, key: str) -> bool:
        """A node's cache has it."""
        return bool(self._nodes_with(key))

    def distrust(self, key: str, why: str) -> bool:
        """As `Layered.distrust`."""
        with self._lock:
            self._doubted.add(key)
            served = key in self._served
        if served:
            self._report_once(f"{key} is damaged in memory and read from the store instead: {why}")
        return served

    def stored(self, num_bytes: int) -> None:
        """So many bytes came from the store."""
        self._count("store", num_bytes)

    def taken(self) -> dict[str, int]:
        """Bytes read since the last call: `own_node`, `other_nodes`, `store`."""
        with self._lock:
            taken, self._bytes_by_source = self._bytes_by_source, Counter()
        return {source: taken[source] for source in ("own_node", "other_nodes", "store")}

    def committed(self, uri: str, job_nodes: Sequence[str]) -> None:
        """Ranks on these nodes wrote this checkpoint, and it is the job's latest now: have it copied, older ones
        dropped. Does not wait."""
        self._follow()
        copies = holders(job_nodes, self._access.nodes, self._copies)
        self._notify_all(lambda node: {"op": "committed", "uri": uri, "copy": [n for n in copies if node in copies[n]]})

    def finished(self) -> None:
        """Nothing of this job is needed any more. Does not wait."""
        self._notify_all(lambda _: {"op": "drop"})

    def close(self) -> None:
        """Waits a little for the notifications of cache servers that are under way."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._notifying:
            thread.join(max(0.0, deadline - time.monotonic()))
        for client in self._clients.values():
            client.close()

    def _follow(self) -> None:
        """Which nodes there are now. Those that are gone may still be asked for what they held."""
        try:
            access = self._reread()
        except InfrastructureError as error:
            self._report_once(f"copies go to the nodes that were known: {error}")
            return
        if access is not None and access.nodes != self._access.nodes:
            self._access = access
            missing = [name for name in access.nodes if name not in self._clients]
            self._clients = {**self._clients, **{name: CacheClient(access, name) for name in missing}}

    def _count(self, source: str, num_bytes: int) -> None:
        with self._lock:
            self._bytes_by_source[source] += num_bytes

    def _lose(self, node: str, error: BaseException) -> None:
        with self._lock:
            self._lost.add(node)
        self._report_once(f"the cache of node {node} cannot be read: {_reason(error)}")

    def _of_this_job(self, key: str) -> bool:
        path = CheckpointPath.parse(key.rpartition("/")[0])
        return path is not None and path.job_id == self._access.job

    def _nodes_with(self, key: str) -> dict[str, int]:
        """Nodes that have a file, this one first, and its size."""
        if not self._of_this_job(key):
            return {}
        uri = key.rpartition("/")[0]
        with self._lock:
            if self._index[0] != uri:
                self._lost = set()
                self._index = uri, self._list_all(uri)
            sizes = self._index[1].get(key, {}) if key not in self._doubted else {}
            return {node: size for node, size in sizes.items() if node not in self._lost}

    def _list_all(self, uri: str) -> dict[str, dict[str, int]]:
        index: dict[str, dict[str, int]] = {}
        listed = self._ask_all(lambda _: {"op": "list", "uri": uri})
        for node in sorted(listed, key=lambda name: (name != self._node, name)):
            for key, size in listed[node].items():
                index.setdefault(key, {})[node] = size
        return index

    def _report_not_cached(self, error: BaseException) -> None:
        if not isinstance(error, InfrastructureError):
            self._not_before = time.monotonic() + REST_SECONDS
        self._report_once(f"not kept in memory: {_reason(error)}")

    def _notify_all(self, request: Callable[[str], dict[str, Any]]) -> None:
        thread = threading.Thread(target=self._ask_all, args=(request,), name="notify-cache-servers", daemon=True)
        self._notifying = [*(running for running in self._notifying if running.is_alive()), thread]
        thread.start()

    def _ask_all(self, request: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """Ask every node at once; the answers of those that gave one."""

        def ask(client: CacheClient) -> Any:
            try:
                return client.ask(**request(client.node))
            except FAULTS as error:
                self._report_once(f"the cache server of node {client.node} does not answer: {_reason(error)}")
                return None

        clients = self._clients  # it may be another meanwhile
        with ThreadPoolExecutor(len(clients), thread_name_prefix="ask-cache-server") as pool:
            answers = dict(zip(clients, pool.map(ask, clients.values()), strict=True))
        return {node: answer for node, answer in answers.items() if answer is not None}

    def _report_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._report(text)


class CacheWriter:
    """A file on its way into the cache of this node. A fault ends the caching, is reported, and harms nothing else."""

    def __init__(self, client: CacheClient, key: str, failed: Callable[[BaseException], None]) -> None:
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


class TieredStore:
    """See `CheckpointStore`: `store`, with the memory tier in front of it for the job's own checkpoints."""

    def __init__(self, store: CheckpointStore, memory: MemoryTier) -> None:
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
                self._store.put(key, _teed(source, writing))
            writing.done()

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        size = self._memory.size(key)
        if size is not None:
            data = bytearray(max(0, min(size - offset, size if length is None else length)))
            if self._memory.read(key, offset, [memoryview(data)]) is not None:
                return bytes(data)
        content = self._store.get(key, offset, length)
        self._memory.stored(len(content))
        return content

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        num = self._memory.read(key, offset, buffers)
        if num is None:
            num = self._store.read_into(key, offset, buffers)
            self._memory.stored(num)
        return num

    def host_file(self, key: str) -> HostFile | None:
        """As `OnHost.host_file`. What only another node's cache has is read from there, not from a folder."""
        cached = self._memory.host_file(key)
        if cached is not None or self._memory.holds(key):
            return cached
        stored = host_file(self._store, key)
        return replace(stored, taken=self._memory.stored) if stored is not None else None

    def distrust(self, key: str, why: str) -> bool:
        return self._memory.distrust(key, why)

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


def _teed(source: Iterable[memoryview], writing: CacheWriter) -> Iterator[memoryview]:
    for data in source:
        writing.add(data)
        yield data


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
