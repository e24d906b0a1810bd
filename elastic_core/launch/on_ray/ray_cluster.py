"""The Ray cluster as seen from inside: which nodes live, what acts on each, questions to them. Here Ray is imported.

A node of ours is a Ray node with the label `elastic.node` (its name) and a resource `slot:TYPE` (how many slots of
which type); `elastic.price` may say what an hour of one slot costs. Everything here needs a driver or an actor
around it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from elastic_core import logs
from elastic_core.errors import InfrastructureError
from elastic_core.host.network.interfaces import is_loopback
from elastic_core.launch.on_ray.sealed_order import ORDER_VARIABLE
from elastic_core.spec import NodeSpec

NODE_LABEL, PRICE_LABEL, SLOT_RESOURCE = "elastic.node", "elastic.price", "slot:"
FAREWELL_SECONDS = 10.0  # that nodes may take to remove the files of a group that has ended
ACTOR_THREADS = 32  # calls to one node at once: a start may take long
HEAD_SECONDS = 1.0  # between two questions of one kind to the head
log = logs.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RayNode:
    spec: NodeSpec
    node_id: str
    logs_url: str  # of the node's agent


def connect(namespace: str) -> None:
    """Become a driver of the cluster that this process was started in."""
    import ray

    ray.init(address="auto", namespace=namespace, log_to_driver=False, logging_level=logging.WARNING)


def living_nodes() -> dict[str, RayNode]:
    """Nodes of ours that Ray holds for alive, by name. Raises `InfrastructureError` where its head does not say."""
    return living_and_mislabelled()[0]


def living_and_mislabelled() -> tuple[dict[str, RayNode], dict[str, str]]:
    """And why those that Ray holds for alive, and whose labels name them ours, are none. Raises as `living_nodes`."""
    import ray
    from ray.exceptions import RayError

    try:
        return read_nodes(ray.nodes())
    except RayError as error:
        raise InfrastructureError(f"Ray's head does not say which nodes there are: {first_line(error)}") from error


def read_nodes(entries: Iterable[Mapping[str, Any]]) -> tuple[dict[str, RayNode], dict[str, str]]:
    """Of Ray's list, as `living_and_mislabelled`. Of two of one name the one that came last counts.

    A node that says of itself what cannot be is passed over: the others are no worse for it.
    """
    nodes, mislabelled = dict[str, RayNode](), dict[str, str]()
    for entry in entries:
        try:
            node = _node(entry) if entry["Alive"] else None
        except ValidationError as error:
            mislabelled[entry["Labels"][NODE_LABEL]] = f"it is mislabelled: {_what_is_wrong(error)}"
        else:
            nodes |= {node.spec.name: node} if node is not None else {}
    return nodes, mislabelled


def _what_is_wrong(error: ValidationError) -> str:
    wrong = (f"{'.'.join(map(str, one['loc']))} is {one['input']!r} ({one['msg']})" for one in error.errors())
    return f"{'; '.join(wrong)}. Start Ray there anew with other labels or resources"


def _node(entry: Mapping[str, Any]) -> RayNode | None:
    spec = node_spec(entry["Labels"], entry["Resources"], entry["NodeManagerAddress"])
    if spec is None:
        return None
    url = f"http://{entry['NodeManagerAddress']}:{entry['DashboardAgentListenPort']}/logs"
    return RayNode(spec, entry["NodeID"], url)


def node_spec(labels: Mapping[str, str], resources: Mapping[str, float], address: str) -> NodeSpec | None:
    """What a Ray node is to the pool; None for one that is not of it. Raises `ValidationError` for what cannot be."""
    name = labels.get(NODE_LABEL)
    slots = {key.removeprefix(SLOT_RESOURCE): int(count) for key, count in resources.items()
             if key.startswith(SLOT_RESOURCE) and count >= 1}  # fmt: skip
    if name is None or len(slots) != 1:
        return None
    ((kind, count),) = slots.items()
    values = {"name": name, "type": kind, "slots": count, "price_per_slot_hour": labels.get(PRICE_LABEL, 0)}
    return NodeSpec.model_validate(values | {"address": None if is_loopback(address) else address})


def actor_of(namespace: str, node: str, node_home: Path) -> Any:
    """What acts on this node: one for all groups, started where there is none. It outlives the job that asks."""
    import ray

    from elastic_core.launch.on_ray.node_actor import NodeActor

    # The sealed order is this job's, and no business of an actor that outlives it.
    return (
        ray.remote(NodeActor)
        .options(
            name=f"node-{node}", namespace=namespace, get_if_exists=True, lifetime="detached", max_restarts=-1,
            num_cpus=0, max_concurrency=ACTOR_THREADS, label_selector={NODE_LABEL: node},
            runtime_env={"env_vars": {ORDER_VARIABLE: ""}},
        )
        .remote(node, str(node_home))
    )  # fmt: skip


def ready(questions: Sequence[Any], seconds: float) -> list[Any]:
    """Those of the questions that are answered, or have failed, as soon as one is."""
    import ray

    done, _ = ray.wait(list(questions), num_returns=1, timeout=seconds)
    if not done:
        return []
    more, _ = ray.wait(list(questions), num_returns=len(questions), timeout=0)
    return list(more)


def forget(actors: Iterable[Any], origin_epoch: int) -> None:
    """Have nodes remove the files of a group that has ended. A node that does not is waited for no longer."""
    asked = [actor.forget.remote(origin_epoch) for actor in actors]
    until = time.monotonic() + FAREWELL_SECONDS
    while asked and time.monotonic() < until:
        done = ready(asked, until - time.monotonic())
        asked = [question for question in asked if question not in done]


def draining_nodes() -> dict[str, float | None]:
    """The nodes that Ray lets go of, by their ids in Ray: until when each is there (Unix seconds), where it says so."""
    import ray

    return read_deadlines(ray._private.state.state.get_draining_nodes())


def read_deadlines(entries: Mapping[str, int]) -> dict[str, float | None]:
    """Of Ray's list, in milliseconds, 0 for a drain without an end."""
    return {node_id: at / 1000 if at > 0 else None for node_id, at in entries.items()}


def answer(question: Any, seconds: float | None = None) -> Any:
    """What was answered. Raises `NodeSilent` where the actor cannot be reached (in time), `RuntimeError` for its own
    failure."""
    import ray
    from ray.exceptions import RayActorError, RayError, RayTaskError

    try:
        return ray.get(question, timeout=seconds)
    except RayActorError as error:  # gone, or not to be reached just now
        raise NodeSilent(str(error)) from error
    except RayTaskError as error:
        raise RuntimeError(str(error.cause)) from error
    except RayError as error:
        raise NodeSilent(str(error)) from error


class NodeSilent(Exception):
    """The actor of a node does not answer: it, its node or the network is gone, for a while or for good."""


class Head:
    """What a coordinator asks the cluster's head while its group trains, by threads of their own.

    While the head is away a question to it hangs or fails, for as long as a minute. A coordinator that waited would be
    taken for dead by its agents. What was known holds meanwhile, and the same is asked again.
    """

    def __init__(self, namespace: str, node_home: Path, living: Mapping[str, RayNode]) -> None:
        self._namespace, self._node_home = namespace, node_home
        self._nodes = _Question(living)
        self._actors: dict[str, _Question] = {}

    def living(self) -> Mapping[str, RayNode]:
        """As `living_nodes` said last, without waiting; it is asked again."""
        self._nodes.put(living_nodes)
        known: Mapping[str, RayNode] = self._nodes.answer
        return known

    def actor_of(self, node: str, *, anew: bool = False) -> Any | None:
        """As the function of this name, without waiting: None until it is known.

        `anew`: it was silent, and may have died for good. It is asked again, and what was known holds meanwhile.
        """
        question = self._actors.setdefault(node, _Question(None))
        if anew or question.answer is None:
            question.put(lambda: actor_of(self._namespace, node, self._node_home))
        return question.answer


class _Question:
    """One thread at most asks; it is no reason for its process to go on."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer  # the last one
        self._open = False
        self._not_before = 0.0  # monotonic seconds
        self._failure = ""

    def put(self, call: Callable[[], Any]) -> None:
        if not self._open and time.monotonic() >= self._not_before:
            self._open = True
            threading.Thread(target=self._ask, args=(call,), daemon=True, name="ask-head").start()

    def _ask(self, call: Callable[[], Any]) -> None:
        try:
            self.answer, failure = call(), ""
        except Exception as error:  # noqa: BLE001 (of Ray: whatever it is, training goes on, and it is asked again)
            failure = first_line(error)
        if failure and failure != self._failure:
            log.warning(f"Ray's head is asked again, for now what was known holds: {failure}")
        self._failure, self._not_before = failure, time.monotonic() + HEAD_SECONDS
        self._open = False


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def names(nodes: Iterable[str]) -> str:
    return ", ".join(sorted(nodes)) or "none"
