"""The pool: nodes, their slots, resource types and prices; and the queues that have a share of it for certain."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator

from elastic_core.domain import Node, Queue
from elastic_core.spec.problems import parse
from elastic_core.text import near_miss

QUEUE_NAME = r"^[a-z0-9][a-z0-9_-]{0,31}$"
MOST_NAMES = 1000
GROUP = "group:"  # before the name of a group, or of a role of Airflow's login; a name without it is a user's


def _named(member: str) -> str:
    if not member.removeprefix(GROUP).strip() or member != member.strip():
        raise ValueError(f"{member!r} names nobody; write a user's name as Airflow has it, group:NAME, or dag:DAG_ID")
    return member


Member = Annotated[str, Field(max_length=256), AfterValidator(_named)]


def _of_one_host(address: str) -> str:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        raise ValueError(f"{address!r} is no IP address; write it in digits, such as 10.0.0.7") from None
    if known.is_unspecified or known.is_multicast or known.is_link_local or str(known) == "255.255.255.255":
        raise ValueError(f"{address} is not the address of one host; give the one by which the other nodes reach it")
    return str(known)


Address = Annotated[str, AfterValidator(_of_one_host)]


class NodeSpec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$",
        description="host name: lower-case letters, digits, '.' and '-', at most 63 characters",
        examples=["node-1"],
    )
    type: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$",
        description="resource type: lower-case letters, digits, '_' and '-', e.g. h200, t4, cpu",
        examples=["h200"],
    )
    slots: int = Field(ge=1, le=1024, description="accelerators of the node, or places for CPU workers", examples=[8])
    price_per_slot_hour: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="what an hour of one slot costs, in any currency"
    )
    address: Address | None = Field(
        default=None,
        description="IP address of the node by which the others reach it, on a network that is private or encrypted "
        "(state is inside TLS all the same); without one its processes talk over loopback",
        examples=["10.0.0.7"],
    )
    network_namespace: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        description="name of a network namespace of this machine (`ip netns`) in which the node's workers run: to try "
        "several hosts on one; needs root, and the address that the namespace has",
        examples=["node-a"],
    )

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.network_namespace is not None and not self.has_address:
            raise ValueError(
                f"node {self.name!r} has the network namespace {self.network_namespace!r} and no address of its own: "
                "loopback ends at a namespace. Give the address of an interface in it"
            )
        return self

    @property
    def has_address(self) -> bool:
        """One that is not loopback."""
        return self.address is not None and not ipaddress.ip_address(self.address).is_loopback


class QueueSpec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        pattern=QUEUE_NAME,
        description="what a job names as its queue: lower-case letters, digits, '_' and '-', at most 32 characters",
        examples=["research"],
    )
    guaranteed: dict[str, PositiveInt] = Field(
        default_factory=dict,
        description="slots by resource type that the queue's jobs get before all others; what they leave is lent out",
        examples=[{"h200": 4}],
    )
    owners: tuple[Member, ...] = Field(
        default=(),
        max_length=MOST_NAMES,
        description="users and groups (group:NAME) who submit with any priority and act on all jobs of the queue; with "
        "neither owners nor members everybody whom Airflow lets start jobs does",
        examples=[["ann", "group:leads"]],
    )
    members: tuple[Member, ...] = Field(
        default=(),
        max_length=MOST_NAMES,
        description="users and groups (group:NAME) who submit to the queue and act on their own jobs",
        examples=[["group:vision", "dag:nightly"]],
    )
    max_priority: int | None = Field(
        default=None, ge=-100, le=100, description="highest priority that others than owners may submit with"
    )
    max_jobs: PositiveInt | None = Field(default=None, description="jobs of the queue that may be active at once")
    max_jobs_per_user: PositiveInt | None = Field(default=None, description="the same of one user")
    max_slots: PositiveInt | None = Field(
        default=None, description="slots, of whatever type, that the queue's jobs may hold at once, borrowed ones too"
    )
    max_slots_per_user: PositiveInt | None = Field(default=None, description="the same of one user")

    def for_policies(self) -> Queue | None:
        """What a decision needs to know of it; None where that is nothing."""
        if not self.guaranteed and self.max_slots is None and self.max_slots_per_user is None:
            return None
        return Queue(
            name=self.name, guaranteed=dict(self.guaranteed), max_slots=self.max_slots,
            max_slots_per_user=self.max_slots_per_user,
        )  # fmt: skip

    def rules(self) -> dict[str, Any]:
        """All but name and guarantee, as plain JSON, without what is not given."""
        return self.model_dump(mode="json", exclude={"name", "guaranteed"}, exclude_defaults=True)


class PresentCluster(BaseModel):
    """The nodes that are there now: some of the cluster's may be away, or all, while its queues keep their shares."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nodes: tuple[NodeSpec, ...]
    queues: tuple[QueueSpec, ...] = ()

    @field_validator("nodes")
    @classmethod
    def _names_differ(cls, nodes: tuple[NodeSpec, ...]) -> tuple[NodeSpec, ...]:
        names = [node.name for node in nodes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"node names must differ, and {twice} are given more than once")
        return nodes

    @field_validator("nodes")
    @classmethod
    def _nodes_reach_each_other(cls, nodes: tuple[NodeSpec, ...]) -> tuple[NodeSpec, ...]:
        without = [node.name for node in nodes if not node.has_address]
        if without and len(without) < len(nodes):
            raise ValueError(
                f"either every node has an address of its own or none: {without} are on loopback, where the others "
                "cannot reach them"
            )
        places: dict[str | None, set[str | None]] = {}
        for node in nodes:
            places.setdefault(node.address, set()).add(node.network_namespace)
        twice = sorted(address for address, where in places.items() if address is not None and len(where) > 1)
        if twice:
            raise ValueError(f"the addresses {twice} are given to several network namespaces; each has its own")
        return nodes

    @field_validator("queues")
    @classmethod
    def _queue_names_differ(cls, queues: tuple[QueueSpec, ...]) -> tuple[QueueSpec, ...]:
        names = [queue.name for queue in queues]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"queue names must differ, and {twice} are given more than once")
        return queues

    def domain_queues(self) -> tuple[Queue, ...]:
        """Those that a decision has to know, by name."""
        ordered = (queue.for_policies() for queue in sorted(self.queues, key=lambda queue: queue.name))
        return tuple(queue for queue in ordered if queue is not None)

    def domain_nodes(self) -> tuple[Node, ...]:
        return tuple(
            Node(name=n.name, type=n.type, num_slots=n.slots, price_per_slot_hour=n.price_per_slot_hour)
            for n in self.nodes
        )


class ClusterSpec(PresentCluster):
    """A whole cluster, as a file gives it."""

    nodes: tuple[NodeSpec, ...] = Field(min_length=1, description="every node, each with slots of one type")
    queues: tuple[QueueSpec, ...] = Field(
        default=(),
        description="teams' queues, with guaranteed shares, members and quotas; jobs of 'default' use what is left, "
        "unless it is listed with members or quotas of its own",
    )

    @model_validator(mode="after")
    def _shares_exist(self) -> Self:
        problems = [*self._unknown_types(), *self._too_much()]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _unknown_types(self) -> Iterator[str]:
        capacity = self.capacity()
        have = ", ".join(f"{count} of {kind}" for kind, count in sorted(capacity.items()))
        for queue in self.queues:
            for kind in sorted(queue.guaranteed.keys() - capacity.keys()):
                near = near_miss(kind, capacity)
                hint = f"; did you mean {near!r}?" if near else "."
                yield f"queue {queue.name!r} is guaranteed slots of {kind!r}, which no node has{hint} There are {have}"

    def _too_much(self) -> Iterator[str]:
        for kind, count in sorted(self.capacity().items()):
            shares = {queue.name: queue.guaranteed[kind] for queue in self.queues if kind in queue.guaranteed}
            if sum(shares.values()) > count:
                guarantees = " + ".join(f"{share} ({name})" for name, share in shares.items())
                yield f"the queues are guaranteed {guarantees} slots of {kind!r}, and the nodes have {count} in all"

    def addresses(self) -> dict[str, str]:
        """Of the nodes that have one, by name; without those in network namespaces, which this process has not."""
        return {n.name: n.address for n in self.nodes if n.address is not None and n.network_namespace is None}

    def capacity(self) -> dict[str, int]:
        """Slots by resource type."""
        capacity: dict[str, int] = {}
        for node in self.nodes:
            capacity[node.type] = capacity.get(node.type, 0) + node.slots
        return capacity


def parse_cluster_spec(data: Any) -> ClusterSpec:
    """A cluster spec from plain JSON values. Raises `UserError` that lists every problem."""
    return parse(ClusterSpec, data, "cluster spec")
