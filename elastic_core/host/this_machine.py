"""The pool that this machine is, when nobody says otherwise: its CUDA devices, else its CPU cores.

CUDA devices are found without importing torch and without making a CUDA context: by `nvidia-smi`, or, where that
program is absent, by torch in a process of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from elastic_core.errors import UserError
from elastic_core.host.network.namespaces import why_unusable
from elastic_core.settings import Settings
from elastic_core.spec import ClusterSpec, NodeSpec
from elastic_core.spec.cluster import parse_cluster_spec
from elastic_core.spec.inputs.value_files import read_values

MOST_CLUSTER_BYTES = 4 * 2**20

_ASK_TORCH = """
import torch
for index in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_name(index))
"""


def discover(settings: Settings) -> ClusterSpec:
    """The cluster spec of `settings.cluster` if it is set, else this machine's. Raises `UserError` for a bad file."""
    return read_cluster(settings.cluster) if settings.cluster else this_machine(device_names())


def read_cluster(path: Path) -> ClusterSpec:
    try:
        return parse_cluster_spec(read_values(path, "cluster spec", MOST_CLUSTER_BYTES))
    except UserError as error:
        raise UserError(
            f'the cluster spec {path} cannot be used: {error}\nIt looks like {{"nodes": [{{"name": "a", "type": "cpu", '
            '"slots": 2}]}.'
        ) from error


def require_networks(cluster: ClusterSpec) -> None:
    """Raises `UserError` that names every node of this machine whose address or network namespace is not there."""
    refused = [
        f"- node {node.name!r}: {why}"
        for node in cluster.nodes
        if node.address is not None and (why := why_unusable(node.address, node.network_namespace))
    ]
    if refused:
        raise UserError("\n".join(["the nodes of the cluster file cannot be reached as it says:", *refused]))


def this_machine(devices: list[str]) -> ClusterSpec:
    """One node a device type (a node's slots are all of one type), or one node with a slot for each CPU core."""
    if not devices:
        return ClusterSpec(nodes=(NodeSpec(name="local", type="cpu", slots=cores()),))
    counts = Counter(device_type(name) for name in devices)
    if len(counts) > 1:
        raise UserError(
            f"this machine has devices of several types, {dict(counts)}, and a slot's index is its device. Choose: set "
            "CUDA_VISIBLE_DEVICES to those of one type, or ELASTIC_CLUSTER to a file like "
            '{"nodes": [{"name": "local", "type": "h200", "slots": 8}]}.'
        )
    ((kind, count),) = counts.items()
    return ClusterSpec(nodes=(NodeSpec(name="local", type=kind, slots=count),))


def cores() -> int:
    """Cores that this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0))


def device_type(name: str) -> str:
    """The resource type of a CUDA device's name: "NVIDIA H200" -> "h200", "Tesla T4" -> "t4"."""
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
    model = [word for word in words if word not in ("nvidia", "tesla", "geforce", "quadro", "graphics", "device")]
    return "-".join(model)[:32] or "cuda"


def device_names() -> list[str]:
    """Names of the CUDA devices that a process started here would see, in their order."""
    names = _nvidia_smi()
    if names is None:
        names = _lines([sys.executable, "-c", _ASK_TORCH], timeout=120) if Path("/dev/nvidiactl").exists() else []
    return visible(names or [], os.environ.get("CUDA_VISIBLE_DEVICES"))


def _nvidia_smi() -> list[str] | None:
    try:
        return _lines(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], timeout=30)
    except FileNotFoundError:
        return None


def _lines(command: list[str], timeout: float) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def visible(names: list[str], variable: str | None) -> list[str]:
    """Apply CUDA_VISIBLE_DEVICES: absent means all; a list ends at its first entry that is not valid."""
    if variable is None:
        return names
    chosen = []
    for entry in filter(None, (part.strip() for part in variable.split(","))):
        if entry.startswith(("GPU-", "MIG-")) and names:
            chosen.append(names[0])  # which one it is does not matter on a machine of one type
        elif entry.isdigit() and int(entry) < len(names):
            chosen.append(names[int(entry)])
        else:
            break
    return chosen
