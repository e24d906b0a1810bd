"""The global batch of a job: its range, and how the learning rate follows it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from elastic_core.spec import bounds


class Batch(BaseModel):
    """Global batch range, in samples, and how the learning rate follows it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: int = Field(
        le=bounds.MOST_BATCH,
        ge=1,
        title="Smallest global batch",
        description="smallest global batch that the platform may choose, in samples of one step over all slots",
        examples=[32],
    )
    max: int = Field(
        le=bounds.MOST_BATCH,
        ge=1,
        title="Largest global batch",
        description="largest global batch that the platform may choose, in samples of one step over all slots",
        examples=[256],
    )
    base: int | None = Field(
        le=bounds.MOST_BATCH,
        default=None,
        ge=1,
        title="Base batch",
        description="batch that the learning rate is tuned for; min if absent",
        examples=[64],
    )
    min_efficiency: float = Field(
        default=0.8,
        gt=0,
        le=1,
        allow_inf_nan=False,
        title="Least worth of a sample",
        description="least part of a sample's worth at the base batch that a larger batch may leave, by the measured "
        "gradient noise; nearer to 1 keeps the batch small and the model as good, less lets a busy job use more slots",
        examples=[0.8],
    )
    learning_rate_rule: Literal["none", "linear", "sqrt", "adascale"] = Field(
        default="sqrt",
        title="Learning rate rule",
        description="how the learning rate follows the global batch: not at all, in proportion, by its square root, "
        "or by the measured gradient noise (AdaScale)",
    )
    max_per_slot: int | None = Field(
        le=bounds.MOST_BATCH,
        default=None,
        ge=1,
        title="Samples that fit a slot",
        description="samples that fit one slot at once; a larger share is done by gradient accumulation",
        examples=[128],
    )

    @model_validator(mode="after")
    def _range_is_one(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is over max {self.max}; min must be at most max")
        if self.base is not None and not self.min <= self.base <= self.max:
            raise ValueError(f"base {self.base} is outside the range; it must be from min {self.min} to max {self.max}")
        return self
