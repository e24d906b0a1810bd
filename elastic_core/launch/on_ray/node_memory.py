"""The memory tier of a Ray node: its own cache server, and the addresses of the other nodes'.

On one machine all nodes' servers are one launcher's (`state.memory_tier.cache_servers`); here each node starts its own,
under the installation's secret, and learns the others' addresses from the coordinator. A convenience, as that is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elastic_core.host.messages import CacheServerAddress, decode, encode
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.settings import Settings
from elastic_core.spec import NodeSpec
from elastic_core.state.memory_tier import cache_servers
from elastic_core.state.memory_tier.cache_client import Access

_MEMBERS = "memory-nodes.json"


def keep_secret(settings: Settings, secret: str) -> None:
    """Have the installation's secret where the node's server reads it."""
    path = settings.secret_file("memory")
    if not secret or (path.exists() and path.read_text() == secret):
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    path.write_text(secret)


def write_members(folder: RunDir, nodes: Sequence[str]) -> None:
    """Which nodes may hold copies for a group."""
    folder.write_json(_MEMBERS, list(nodes))


def change_members(folder: RunDir, nodes: Sequence[str]) -> None:
    """As `write_members`, while the group runs: its ranks look again when they commit."""
    access = folder.read(Access)
    if access is not None and access.nodes != tuple(nodes):
        folder.write(replace(access, nodes=tuple(nodes)))


def prepare(settings: Settings, order: LaunchOrder, folder: RunDir, node: NodeSpec) -> list[Any]:
    """As `cache_servers.prepare`, for this node alone."""
    members = folder.read_json(_MEMBERS) or [node.name]
    return cache_servers.prepare_on(settings, order, folder, members, {node.name: node.address})


def serve(settings: Settings, node: NodeSpec) -> None:
    """Have this node's cache server run, for groups of other nodes."""
    cache_servers.wait(cache_servers.start(settings, [node.name], {node.name: node.address}))


def own_address(home: Path, node: str) -> Any:
    """The plain value of the server's address; None without a server."""
    address = _folder(home).read(CacheServerAddress, node) if _folder(home).path.exists() else None
    return encode(address) if address is not None and address.process.alive() else None


def meet(home: Path, addresses: Mapping[str, Any]) -> None:
    """Have the addresses of other nodes' servers where this node's processes look for them."""
    folder = _folder(home)
    for node, value in addresses.items():
        folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        known, name = decode(CacheServerAddress, value), CacheServerAddress.FILE.format(node)
        text = json.dumps(encode(known))
        if folder.read_json(name) != json.loads(text):
            folder.write(known, node)


def _folder(home: Path) -> RunDir:
    return RunDir(cache_servers.folder_of(Settings(home=home)))
