"""How much a job is to train, by which measure, in which batches and segments, and what may end it before."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from elastic_core.spec import bounds


class Work(BaseModel):
    """Amount of work: exactly one of epochs and samples, and what they count.

    With a target loss or patience nobody knows it: it is a limit then.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: float | None = Field(
        le=bounds.MOST_EPOCHS,
        default=None,
        gt=0,
        allow_inf_nan=False,
        title="Epochs",
        description="passes over the data set; give this or samples",
        examples=[10],
    )
    samples: int | None = Field(
        le=bounds.MOST_SAMPLES,
        default=None,
        gt=0,
        title="Samples",
        description="samples to train on in all, a sample read twice counts twice; give this or epochs",
        examples=[100_000],
    )
    target_loss: float | None = Field(
        le=bounds.MOST_SAMPLES,
        default=None,
        gt=0,
        allow_inf_nan=False,
        title="Target loss",
        description="end as soon as the training loss, averaged over 20 steps, is at most this; epochs or samples are "
        "then the most that the job may take",
        examples=[0.1],
    )
    measure: Literal["samples", "progress"] = Field(
        default="samples",
        title="Measure",
        description="what epochs and samples count. samples: what is read. progress: what that is worth in samples at "
        "batch.base, by the measured gradient noise (AdaScale); larger batches then take fewer steps and more samples",
    )
    max_samples: int | None = Field(
        le=bounds.MOST_SAMPLES,
        default=None,
        gt=0,
        title="Most samples",
        description="samples after which the job ends in any case; for measure: progress, where larger batches read "
        "more than epochs and samples say",
        examples=[1_000_000],
    )
    patience: int | None = Field(
        le=bounds.MOST_SAMPLES,
        default=None,
        ge=1,
        title="Patience",
        description="end when the task's metric on held-out data (the training loss, where the task evaluates nothing) "
        "was not better than its best in this many passes of the work in a row, measured at the end of each; epochs or "
        "samples are then the most that the job may take",
        examples=[5],
    )

    @property
    def end_is_known(self) -> bool:
        """Whether epochs or samples say when the job ends; else they are the most that it may take."""
        return self.target_loss is None and self.patience is None

    @property
    def scale_invariant(self) -> bool:
        """Whether the amount is in samples at the base batch (AdaScale's scale-invariant iterations x that batch)."""
        return self.measure == "progress"

    @model_validator(mode="after")
    def _cap_is_of_progress(self) -> Self:
        if self.max_samples is not None and not self.scale_invariant:
            raise ValueError(
                f"max_samples ({self.max_samples}) is given, but measure is 'samples', where epochs or samples say how "
                "many are read; leave max_samples out, or set measure: progress"
            )
        return self

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if self.epochs is not None and self.samples is not None:
            raise ValueError(
                f"both epochs ({self.epochs:g}) and samples ({self.samples}) are given; give one of the two"
            )
        if self.epochs is None and self.samples is None:
            raise ValueError("neither epochs nor samples is given; give one of the two, e.g. epochs: 10")
        return self


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


class SegmentLength(BaseModel):
    """A segment ends at whichever comes first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: float | None = Field(
        le=bounds.MOST_SECONDS,
        default=300.0,
        gt=0,
        allow_inf_nan=False,
        title="Seconds",
        description="seconds that a segment trains before the platform decides again; null for no such limit",
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        le=bounds.MOST_SAMPLES,
        title="Steps",
        description="the same in optimizer steps; null for no such limit",
    )

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.seconds is None and self.steps is None:
            raise ValueError("neither seconds nor steps ends a segment; give at least one, e.g. seconds: 300")
        return self
