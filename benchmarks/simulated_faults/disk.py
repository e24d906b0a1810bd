"""The simulated checkpoint store: objects in memory, whole or not there, with faults of disk and network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from benchmarks.simulated_faults.hub import Hub
from benchmarks.simulated_faults.network import Network
from elastic_core.errors import InfrastructureError
from elastic_core.state.stores.store import Entry, Source


@dataclass
class Disk:
    """What is stored; `damaged`: keys that rotted, which no promise of the platform's covers."""

    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    full_until: float = 0.0
    away_until: float = 0.0

    def mend(self) -> None:
        self.full_until = self.away_until = 0.0

    def rot(self, key: str) -> None:
        content, at = self.objects[key]
        self.objects[key] = (content[:-1] + bytes([content[-1] ^ 1]), at)
        self.damaged.add(key)


class SimulatedStore:
    """`CheckpointStore` for one part of the system."""

    url = "simulated://"

    def __init__(
        self, disk: Disk, hub: Hub, network: Network, part: str, clock: Callable[[], float], rng: Random
    ) -> None:
        self._disk, self._hub, self._network, self._part = disk, hub, network, part
        self._clock, self._rng = clock, rng

    def put(self, key: str, source: Source) -> None:
        assert isinstance(source, bytes)
        self._reach()
        if self._hub.now < self._disk.full_until:
            raise InfrastructureError(f"no space left on device while writing {key!r} (simulated)")
        self._disk.objects[key] = (source, self._clock())

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self._reach()
        if key not in self._disk.objects:
            raise FileNotFoundError(key)
        content = self._disk.objects[key][0][offset:]
        return content if length is None else content[:length]

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        raise NotImplementedError("simulated trainers read whole objects")

    def size(self, key: str) -> int | None:
        found = self._disk.objects.get(key)
        return None if found is None else len(found[0])

    def list(self, prefix: str) -> Iterable[str]:
        return [entry.key for entry in self.entries(prefix)]

    def entries(self, prefix: str) -> Iterable[Entry]:
        self._reach()
        return [
            Entry(key, len(content), at)
            for key, (content, at) in sorted(self._disk.objects.items())
            if prefix in ("", key) or key.startswith(f"{prefix}/")
        ]

    def unfinished(self, prefix: str) -> Iterable[Entry]:  # noqa: ARG002 - objects are whole or not there
        return []

    def delete(self, prefix: str) -> None:
        for entry in self.entries(prefix):
            del self._disk.objects[entry.key]

    def _reach(self) -> None:
        self._hub.sleep(self._rng.uniform(0.02, 0.4))
        if self._hub.now < self._disk.away_until or not self._network.connected(self._part, "store"):
            self._hub.sleep(self._rng.uniform(0.1, 5.0))
            raise InfrastructureError("the store gave no answer (simulated)")
