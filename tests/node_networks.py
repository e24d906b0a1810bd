"""Nodes that are namespaces of this machine, or addresses of it, for tests that need several hosts: root only, skipped
elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def addresses(nodes: Sequence[str]) -> Iterator[dict[str, str]]:
    """An address of this machine for each node, gone afterwards.

    Each is the first of an interface of its own, as a machine's is: a bridge that joins nothing. On `lo` it would stand
    behind loopback's, and gloo takes an interface's first.
    """
    places = {f"n{os.getpid()}-{number}": f"10.203.{os.getpid() % 250}.{number + 1}" for number in range(len(nodes))}
    try:
        for interface, address in places.items():
            for words in (
                ("link", "add", interface, "type", "bridge"), ("addr", "add", f"{address}/32", "dev", interface),
                ("link", "set", interface, "up"),
            ):  # fmt: skip
                subprocess.run(["ip", *words], check=True)
        yield dict(zip(nodes, places.values(), strict=True))
    finally:
        for interface in places:
            subprocess.run(["ip", "link", "del", interface], check=False)


def skip_without_root() -> None:
    """For tests that make interfaces or break connections of others, which root alone may, with iproute2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("it takes root, and iproute2 (apt-get install iproute2)")


def skip_without_namespaces() -> None:
    why = missing()
    if why is not None:
        pytest.skip(why)
