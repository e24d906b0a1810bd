"""Nodes that are namespaces of this machine, for tests that need several hosts: root only, skipped elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.communication.namespaces import _SUBNET, Namespaces, Network, missing


class NodeNamespaces(Namespaces):
    """As many nodes, joined by links of so many bits a second (None: as fast as the machine is)."""

    def __init__(self, nodes: int, bits_per_second: float | None = None) -> None:
        super().__init__(nodes, Network("nodes", bits_per_second))

    @property
    def names(self) -> list[str]:
        return list(self._names)

    @property
    def addresses(self) -> list[str]:
        return [f"{_SUBNET}.{rank + 1}" for rank in range(len(self._names))]

    def cluster(self, slots: int) -> dict[str, Any]:
        """Of CPU slots, for `ClusterSpec`; nodes are called node-a, node-b, ..."""
        places = enumerate(zip(self.names, self.addresses, strict=True))
        return {
            "nodes": [
                {"name": f"node-{chr(ord('a') + number)}", "type": "cpu", "slots": slots, "address": address,
                 "network_namespace": name}
                for number, (name, address) in places
            ]
        }  # fmt: skip


def skip_without_namespaces() -> None:
    why = missing()
    if why is not None:
        pytest.skip(why)
