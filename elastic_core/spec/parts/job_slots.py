"""What a job may ask of the pool: how many slots, of which types, how its model may be laid out on them, and how they
work together: replicas that sum gradients among themselves, or workers with parameter servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from elastic_core.domain import EXACT, Layout
from elastic_core.spec import bounds
from elastic_core.spec.parts.job_comm import Comm
from elastic_core.spec.parts.job_work import Batch, Work

Sync = Literal["allreduce", "parameter_server", "either"]
MOST_SERVERS = 32  # each number of them is a layout of its own
MOST_SIZES = 16  # of one kind: their products with each other are layouts


class Slots(BaseModel):
    """How many slots, and of which types. `max` follows `min` where absent, both follow `allowed`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: int = Field(
        le=bounds.MOST_SLOTS,
        default=1,
        ge=1,
        title="Fewest slots",
        description="the job waits rather than run on fewer slots",
        examples=[1],
    )
    max: int = Field(
        le=bounds.MOST_SLOTS,
        default=1,
        ge=1,
        title="Most slots",
        description="the job never gets more slots than this; min if absent",
        examples=[4],
    )
    allowed: tuple[Annotated[int, Field(ge=1, le=bounds.MOST_SLOTS)], ...] | None = Field(
        max_length=bounds.MOST_LISTED,
        default=None,
        title="Allowed counts",
        description="only these counts, e.g. [1, 2, 4]; every count from min to max if absent",
        examples=[[1, 2, 4]],
    )
    requested: int | None = Field(
        le=bounds.MOST_SLOTS,
        default=None,
        ge=1,
        title="Requested count",
        description="what a static scheduler would be asked for; max if absent",
        examples=[2],
    )
    types: tuple[Annotated[str, Field(max_length=bounds.MOST_CHARACTERS)], ...] = Field(
        max_length=bounds.MOST_LISTED,
        default=(),
        title="Resource types",
        description="resource types the job may use, the preferred first; empty for any",
        examples=[["h200", "cpu"]],
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_range(cls, data: Any) -> Any:
        """Absent ends of the range follow what is given: a user who writes `allowed: [2, 4]` means 2 to 4."""
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        allowed = filled.get("allowed")
        if isinstance(allowed, list | tuple) and allowed and all(isinstance(count, int) for count in allowed):
            filled.setdefault("min", min(allowed))
            filled.setdefault("max", max(allowed))
        elif isinstance(filled.get("min"), int):
            filled.setdefault("max", filled["min"])
        return filled

    @model_validator(mode="after")
    def _counts_exist(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is over max {self.max}; min must be at most max")
        if self.allowed is not None:
            self._check_allowed(self.allowed)
        counts = self.counts()
        if self.requested is not None and self.requested not in counts:
            raise ValueError(
                f"requested {self.requested} is not one of the counts that the job may have: {_list_counts(counts)}"
            )
        return self

    def _check_allowed(self, allowed: tuple[int, ...]) -> None:
        if not allowed:
            raise ValueError(
                "allowed is empty, so that no count is possible; leave it out for every count, or list some"
            )
        outside = sorted(count for count in allowed if not self.min <= count <= self.max)
        if outside:
            raise ValueError(
                f"allowed counts {outside} are outside min {self.min} to max {self.max}; "
                "leave them out or widen the range"
            )

    def counts(self) -> tuple[int, ...]:
        """The counts that the job may have, ascending."""
        return tuple(sorted(set(self.allowed))) if self.allowed else tuple(range(self.min, self.max + 1))


class Layouts(BaseModel):
    """How the platform may cut the model over the slots; the task must admit it too (`spec.admitted_layouts`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tensor: tuple[Annotated[int, Field(le=bounds.MOST_SLOTS)], ...] = Field(
        max_length=MOST_SIZES,
        default=(1,),
        title="Tensor-parallel sizes",
        description="slots that may share each layer of one replica of the model, e.g. [1, 2]",
        examples=[[1, 2]],
    )
    pipeline: tuple[Annotated[int, Field(le=bounds.MOST_SLOTS)], ...] = Field(
        max_length=MOST_SIZES,
        default=(1,),
        title="Pipeline stages",
        description="numbers of stages that the layers of one replica may be spread over, e.g. [1, 2, 4]",
        examples=[[1, 2]],
    )
    sharded: Literal["never", "either", "always"] = Field(
        default="never",
        title="Sharded state",
        description="whether data-parallel slots hold shards of parameters, gradients and optimizer (FSDP) instead of "
        "whole replicas: saves memory, costs exchange; either lets the platform choose",
    )

    @field_validator("tensor", "pipeline")
    @classmethod
    def _sizes(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if not sizes or min(sizes) < 1:
            raise ValueError(f"{list(sizes)} are no sizes; give at least one, each 1 or more, e.g. [1, 2]")
        return tuple(sorted(set(sizes)))

    def cuts(self) -> tuple[Layout, ...]:
        """As `Limits.cuts`, the simplest first: replicas before shards, then the fewest slots for a replica."""
        shards = {"never": (False,), "either": (False, True), "always": (True,)}[self.sharded]
        cuts = [
            Layout(tensor=tensor, pipeline=pipeline, sharded=sharded)
            for sharded in shards for tensor in self.tensor for pipeline in self.pipeline
        ]  # fmt: skip
        return tuple(sorted(cuts, key=lambda cut: (cut.sharded, cut.model_size, cut.pipeline)))


class Servers(BaseModel):
    """How many of a job's slots may be parameter servers. `max` follows `min` where it is less."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: int = Field(
        default=1,
        ge=1,
        le=MOST_SERVERS,
        title="Fewest servers",
        description="parameter servers that the job has at least, where it has any; each takes a slot",
    )
    max: int = Field(
        default=4, ge=1, le=MOST_SERVERS, title="Most servers", description="parameter servers that it has at most"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_range(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(data.get("min"), int) and "max" not in data:
            return {**data, "max": max(data["min"], 4)}
        return data

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is over max {self.max}; min must be at most max")
        return self


def cuts_of(sync: Sync, servers: Servers, cuts: tuple[Layout, ...]) -> tuple[Layout, ...]:
    """As `Limits.cuts`, the simplest first; `cuts` are those of replicas."""
    served = tuple(Layout(servers=count) for count in range(servers.min, servers.max + 1))
    return {"allreduce": cuts, "parameter_server": served, "either": cuts + served}[sync]


def filled_by(cuts: tuple[Layout, ...]) -> str:
    """Which counts of slots there are layouts for, in words."""
    if cuts[0].servers:
        return f"a worker, and {cuts[0].servers} parameter servers or more, take {cuts[0].servers + 1} slots at least"
    units = sorted({cut.model_size for cut in cuts})
    return f"layouts give multiples of {', '.join(map(str, units))} (tensor x pipeline)"


def server_problems(
    sync: Sync, servers: Servers, slots: Slots, layouts: Layouts, comm: Comm, placement: str, work: Work, batch: Batch
) -> Iterator[str]:
    """What workers with parameter servers cannot do, and what is given in vain."""
    if sync == "allreduce":
        if servers != Servers():
            yield (
                "servers are given, and sync is 'allreduce', so that there are none; set sync: parameter_server or "
                "either, or leave servers out"
            )
        return
    whole = "is for replicas that exchange gradients among themselves"
    wrong = [
        (layouts != Layouts(), "layouts cut the model, and a worker has all of it", "leave them out"),
        (comm.algorithm != EXACT, f"comm.algorithm {comm.algorithm!r} {whole}", f"set it to {EXACT}"),
        (comm.hierarchical, f"comm.hierarchical {whole}", "leave it out"),
        (placement != "none", f"placement {placement!r} has the layers on several types", "set it to none"),
        (work.scale_invariant, "work.measure 'progress' needs the noise of one worker too", "set it to samples"),
        (batch.learning_rate_rule == "adascale", "batch.learning_rate_rule 'adascale' needs the same",
         "take linear, sqrt or none"),
    ]  # fmt: skip
    found = [f"{what}; {instead}" for is_wrong, what, instead in wrong if is_wrong]
    if found:
        yield f"sync is {sync!r}, and {'; and '.join(found)}"
    most, least = slots.counts()[-1], servers.min + 1
    if sync == "parameter_server" and most < least:
        yield (
            f"sync is 'parameter_server', which takes a slot for a worker and {servers.min} for servers, and slots may "
            f"be {most} at most; give slots.max of at least {least}, or fewer servers"
        )


def _list_counts(counts: tuple[int, ...]) -> str:
    if len(counts) > 8 and counts == tuple(range(counts[0], counts[-1] + 1)):
        return f"{counts[0]} to {counts[-1]}"
    return ", ".join(map(str, counts))
