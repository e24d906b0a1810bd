"""The pool: nodes, their slots, resource types and prices."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from elastic_core.domain import Node
from elastic_core.spec.problems import parse


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
    price_per_slot_hour: float = Field(default=0.0, ge=0, description="what an hour of one slot costs, in any currency")


class ClusterSpec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    nodes: tuple[NodeSpec, ...] = Field(min_length=1, description="every node, each with slots of one type")

    @field_validator("nodes")
    @classmethod
    def _names_differ(cls, nodes: tuple[NodeSpec, ...]) -> tuple[NodeSpec, ...]:
        names = [node.name for node in nodes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"node names must differ, and {twice} are given more than once")
        return nodes

    def domain_nodes(self) -> tuple[Node, ...]:
        return tuple(
            Node(name=n.name, type=n.type, num_slots=n.slots, price_per_slot_hour=n.price_per_slot_hour)
            for n in self.nodes
        )

    def capacity(self) -> dict[str, int]:
        """Slots by resource type."""
        capacity: dict[str, int] = {}
        for node in self.nodes:
            capacity[node.type] = capacity.get(node.type, 0) + node.slots
        return capacity


def parse_cluster_spec(data: Any) -> ClusterSpec:
    """A cluster spec from plain JSON values. Raises `UserError` that lists every problem."""
    return parse(ClusterSpec, data, "cluster spec")
