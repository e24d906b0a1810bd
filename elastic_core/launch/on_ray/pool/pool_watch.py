"""Looks at the nodes of the Ray cluster and says when the pool is another: a job of Ray, one an installation.

`python -m ... --namespace N --home H`, submitted by `pool_reports`, which reads what it says (`journal`). A node that
has come is in the pool once it is clean: once nothing runs there of a group whose coordinator is not heard any more.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from elastic_core import logs
from elastic_core.launch.on_ray import journal, ray_cluster
from elastic_core.launch.on_ray.ray_cluster import NodeSilent, RayNode

LOOK_SECONDS = 1.0
WAIT_SECONDS = 0.2  # for nodes' answers in one look, all together; they may come in a later one
FIRST_SECONDS = 10.0  # that nodes have to answer before a watch says anything
Found = Sequence[int] | Exception
log = logs.get_logger(__name__)


class PoolWatch:
    """`strays` gives, of nodes that are there, by their id in Ray: what runs unheard, or why that is not known."""

    def __init__(self, strays: Callable[[Sequence[RayNode]], Mapping[str, Found]]) -> None:
        self._strays = strays
        self._clean: dict[str, str] = {}  # id in Ray of each node that has shown to be clean, by name
        self._reasons: dict[str, str] = {}  # why others are not, by their id in Ray

    def look(
        self,
        living: Mapping[str, RayNode],
        draining: Mapping[str, float | None],
        mislabelled: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """The pool now, as plain JSON. `draining`: as of `ray_cluster.draining_nodes`. `mislabelled`: why nodes that
        are there can be none of it, by name."""
        self._clean = {name: node_id for name, node_id in self._clean.items()
                       if name in living and living[name].node_id == node_id}  # fmt: skip
        asked = {name: node for name, node in living.items() if name not in self._clean}
        found = self._strays(list(asked.values()))
        unclean = {name: why for name, node in asked.items() if (why := self._why(node, found[node.node_id]))}
        self._reasons = {living[name].node_id: why for name, why in unclean.items()}
        self._clean |= {name: node.node_id for name, node in living.items() if name not in unclean}
        nodes = [node.spec.model_dump(mode="json") for name, node in sorted(living.items()) if name not in unclean]
        drained = {name: draining[node.node_id] for name, node in sorted(living.items()) if node.node_id in draining}
        return {
            "nodes": nodes,
            "draining": list(drained),
            "deadlines": {name: at for name, at in drained.items() if at is not None},
            "unclean": dict(sorted(unclean.items())),
            "mislabelled": dict(sorted(mislabelled.items())),
        }

    def _why(self, node: RayNode, found: Found) -> str:
        """Nothing for a clean one. Of one that does not answer what was known holds: each change of words is told."""
        if isinstance(found, Exception):
            return self._reasons.get(node.node_id) or f"it does not say what runs there: {found}"
        return f"processes of epochs {', '.join(map(str, sorted(found)))} still run there" if found else ""


class StrayQuestions:
    """Asks nodes what runs there, and waits for none: while the actor of one starts, the others are looked at.

    `ask` puts the question to a node; `ready` and `answer` are those of `ray_cluster`.
    """

    def __init__(
        self,
        ask: Callable[[RayNode], Any],
        ready: Callable[[Sequence[Any], float], Sequence[Any]] = ray_cluster.ready,
        answer: Callable[[Any], Any] = ray_cluster.answer,
    ) -> None:
        self._ask, self._ready, self._answer = ask, ready, answer
        self._open: dict[str, Any] = {}  # by the node's id in Ray

    def __call__(self, nodes: Sequence[RayNode]) -> dict[str, Found]:
        """As `PoolWatch` wants it; `NodeSilent` while there is no answer."""
        self._open = {node.node_id: self._open.get(node.node_id) or self._ask(node) for node in nodes}
        answered = self._answered()
        return {node.node_id: self._found(node.node_id, answered) for node in nodes}

    def _answered(self) -> list[Any]:
        """Of the open questions, after a while in which more may be."""
        waiting, answered, until = list(self._open.values()), list[Any](), time.monotonic() + WAIT_SECONDS
        while waiting and (done := self._ready(waiting, max(0.0, until - time.monotonic()))):
            answered += done
            waiting = [question for question in waiting if question not in done]
        return answered

    def _found(self, node_id: str, answered: Sequence[Any]) -> Found:
        if self._open[node_id] not in answered:
            return NodeSilent("it has not answered yet")
        try:
            found: Sequence[int] = self._answer(self._open.pop(node_id))
        except (NodeSilent, RuntimeError) as error:
            return error
        return found


def is_news(pool: Mapping[str, Any], said: Mapping[str, Any] | None, seconds: float) -> bool:
    """Whether to say what the pool is, so many seconds after the watch began.

    One that has just begun, as it does with each start of Ray's head, waits for nodes that are slow to answer: a node
    that it left out would be taken for lost.
    """
    return pool != said and (said is not None or not pool["unclean"] or seconds > FIRST_SECONDS)


def main(argv: Sequence[str]) -> None:
    """Called by Ray, hence no help. Ends when the job is stopped."""
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    logs.configure("pool watch")
    namespace, home = options["--namespace"], Path(options["--home"])
    ray_cluster.connect(namespace)

    def ask(node: RayNode) -> Any:
        return ray_cluster.actor_of(namespace, node.spec.name, home).strays.remote()

    watch, said, began = PoolWatch(StrayQuestions(ask)), None, time.monotonic()
    while True:
        living, mislabelled = ray_cluster.living_and_mislabelled()
        pool = watch.look(living, ray_cluster.draining_nodes(), mislabelled)
        if is_news(pool, said, time.monotonic() - began):
            journal.say_last("pool", pool)
            said = pool
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:])
