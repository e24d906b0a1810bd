"""Nodes that are namespaces of this machine, for tests that need several hosts: root only, skipped elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
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

    def sent_bytes(self) -> int:
        """By all nodes to each other, since they are there."""
        total = 0
        for name in self._names:
            shown = subprocess.run(["ip", "-n", name, "-s", "-j", "link"], check=True, capture_output=True).stdout
            links = [link for link in json.loads(shown) if link["ifname"] != "lo"]
            total += sum(link["stats64"]["tx"]["bytes"] for link in links)
        return total

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


def skip_without_root() -> None:
    """For tests that make interfaces or break connections of others, which root alone may, with iproute2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("it takes root, and iproute2 (apt-get install iproute2)")


def skip_without_namespaces() -> None:
    why = missing()
    if why is not None:
        pytest.skip(why)
