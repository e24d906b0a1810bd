"""What a job may ask of the pool: how many slots, of which types, and how its model may be laid out on them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from elastic_core.domain import Layout
from elastic_core.spec import bounds

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


def _list_counts(counts: tuple[int, ...]) -> str:
    if len(counts) > 8 and counts == tuple(range(counts[0], counts[-1] + 1)):
        return f"{counts[0]} to {counts[-1]}"
    return ", ".join(map(str, counts))
