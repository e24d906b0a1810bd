"""Have Ray drain a node of ours, by its name: `python -m elastic_core.launch.on_ray.pool.drain_node --node NAME`.

For whoever gets the notice that a node will go (a spot market, a Slurm allocation near its end, a pod that is asked to
end), on any node of the cluster. The pool's service sets the node aside then, and jobs leave it at a boundary. This
returns when the node has had no process of a job for a while, coordinators among them, or its time is up. For a while:
what was granted just before the node was set aside may yet start there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from elastic_core import logs
from elastic_core.errors import UserError
from elastic_core.host.exits import exit_code
from elastic_core.launch.on_ray import ray_cluster
from elastic_core.launch.on_ray.ray_cluster import NodeSilent

LOOK_SECONDS = 1.0
ANSWER_SECONDS = 10.0
QUIET_SECONDS = 20.0  # in which what was granted before has started
log = logs.get_logger(__name__)


def drain(node: str, seconds: int, reason: str) -> None:
    """Raises `UserError` where Ray has no such node, or will not drain it."""
    living = ray_cluster.living_nodes()
    if node not in living:
        raise UserError(f"no node {node!r} is in the Ray cluster; there are: {ray_cluster.names(living)}")
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--node-id", living[node].node_id,
        "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", reason,
        "--deadline-remaining-seconds", str(seconds),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"Ray does not drain node {node}: {done.stderr.strip().splitlines()[-1]}")


def wait_until_empty(namespace: str, node: str, home: Path, seconds: float) -> bool:
    """Whether nothing of a job was left there within this time: for `QUIET_SECONDS`, or when the time is up."""
    until, empty_since = time.monotonic() + seconds, None
    while time.monotonic() < until and not _is_quiet(empty_since):
        empty_since = (empty_since or time.monotonic()) if _is_empty(namespace, node, home) else None
        time.sleep(LOOK_SECONDS)
    return empty_since is not None


def keep_logs(namespace: str, node: str, home: Path) -> None:
    """Of jobs that go with the node."""
    try:
        ray_cluster.answer(ray_cluster.actor_of(namespace, node, home).keep_logs.remote(), ANSWER_SECONDS)
    except (NodeSilent, RuntimeError) as error:
        log.warning(f"what jobs printed on node {node} is there alone: {error}")


def _is_empty(namespace: str, node: str, home: Path) -> bool:
    try:
        return not ray_cluster.answer(ray_cluster.actor_of(namespace, node, home).alive.remote(), ANSWER_SECONDS)
    except (NodeSilent, RuntimeError) as error:
        log.warning(f"node {node} does not say what runs there: {error}")
        return False


def _is_quiet(empty_since: float | None) -> bool:
    return empty_since is not None and time.monotonic() - empty_since >= QUIET_SECONDS


def main(argv: Sequence[str]) -> int:
    logs.configure("drain node")
    parser = argparse.ArgumentParser(prog="python -m elastic_core.launch.on_ray.pool.drain_node", description=__doc__)
    parser.add_argument("--node", required=True, help="its name: the label elastic.node")
    parser.add_argument("--seconds", type=int, default=300, help="until it goes (300)")
    parser.add_argument("--reason", default="the node will go", help="in words, for Ray's own pages")
    parser.add_argument("--namespace", default="elastic", help="ELASTIC_RAY_NAMESPACE of the installation (elastic)")
    parser.add_argument(
        "--home", type=Path, required=True, help="ELASTIC_RAY_NODE_HOME, or <home>/nodes, of the installation"
    )
    options = parser.parse_args(argv)
    until = time.monotonic() + options.seconds
    try:
        ray_cluster.connect(options.namespace)
        drain(options.node, options.seconds, options.reason)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return exit_code(error)
    empty = wait_until_empty(options.namespace, options.node, options.home, until - time.monotonic())
    if not empty:
        keep_logs(options.namespace, options.node, options.home)
    sys.stdout.write(f"node {options.node} is {'empty' if empty else 'not empty, and its time is up'}\n")
    return 0 if empty else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
