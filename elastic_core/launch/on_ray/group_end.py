"""Ends a group on every node of the cluster, whatever became of its coordinator: a job of Ray of its own.

`python -m ... --namespace N --epoch E --grace S --home H [--forget LEASE_SECONDS]`, submitted by `ray_launcher`. Says
in its output (`journal`) what became of the group once nothing of it is left on nodes that are there. On one that is
not, or whose actor hangs, the agent ends it when it has not heard its coordinator for a lease's life. `--forget`: its
coordinator has ended, and does not remove the group's files, its tokens among them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from elastic_core import logs
from elastic_core.domain import from_json
from elastic_core.launch.on_ray import journal, ray_cluster
from elastic_core.launch.on_ray.merged_exit import merged
from elastic_core.launch.on_ray.ray_cluster import NodeSilent
from elastic_core.protocol.process_groups import ExitKind, ExitReport

log = logs.get_logger(__name__)
PATIENCE_SECONDS = 30.0  # past the grace, for a node to end its part
ANSWER_SECONDS = 15.0  # more, for it to say so, and for its agent to end what has not heard its coordinator
GONE = "nothing of it is left on the nodes of the Ray cluster"


def end(
    namespace: str, origin_epoch: int, grace_seconds: float, home: Path, *, unheard_after: float | None = None
) -> ExitReport | None:
    """Returns when no node that is there has something left; None where that did not come about.

    `unheard_after`: the coordinator has ended, the group's files go, and a node that has not answered for so many
    seconds, a lease's life, has nothing left.
    """
    forget, patience = unheard_after is not None, grace_seconds + PATIENCE_SECONDS
    until = time.monotonic() + max(patience, unheard_after or 0.0) + ANSWER_SECONDS
    actors = {name: ray_cluster.actor_of(namespace, name, home) for name in ray_cluster.living_nodes()}
    asked = {name: actor.end.remote(origin_epoch, grace_seconds, patience) for name, actor in actors.items()}
    reports, sure = [], True
    for name, question in asked.items():
        try:
            answer = ray_cluster.answer(question, max(0.0, until - time.monotonic()))
        except (NodeSilent, RuntimeError) as error:
            log.warning(f"node {name} did not say that it has ended the group: {error}")
            ended_by_agent = forget and time.monotonic() >= until
            sure = sure and (ended_by_agent or name not in ray_cluster.living_nodes())
            continue
        sure = sure and not answer["alive"]
        if answer["exit"] is not None:
            reports.append(from_json(ExitReport, answer["exit"]))
    if not sure:
        return None
    if forget:  # not before: who asks again finds each node's report
        ray_cluster.forget(actors.values(), origin_epoch)
    return merged(reports) if reports else ExitReport(kind=ExitKind.INFRASTRUCTURE, error=GONE)


def main(argv: Sequence[str]) -> int:
    """Called by Ray, hence no help."""
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    logs.configure("group end")
    ray_cluster.connect(options["--namespace"])
    report = end(
        options["--namespace"], int(options["--epoch"]), float(options["--grace"]), Path(options["--home"]),
        unheard_after=float(options["--forget"]) if "--forget" in options else None,
    )  # fmt: skip
    if report is None:
        return 1
    journal.say_exit(report)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
