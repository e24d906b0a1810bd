"""How the replicas of a job's model exchange gradients, and how far that may be from the exact sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Algorithm = Literal["allreduce", "fp16", "bf16", "bytegrad", "powersgd", "auto"]
Allowed = Literal["exact", "lossy", "averaging"]
CLASSES: Mapping[str, Allowed] = {
    "allreduce": "exact",
    "fp16": "lossy",
    "bf16": "lossy",
    "bytegrad": "lossy",
    "powersgd": "lossy",
}


EXACTLY: Allowed = "exact"


def admitted(allow: Allowed | None) -> tuple[str, ...]:
    """The algorithms that are no further from the exact sum than this."""
    order = get_args(Allowed)
    return tuple(name for name, of in CLASSES.items() if order.index(of) <= order.index(allow or EXACTLY))


class Comm(BaseModel):
    """An algorithm, and the most that any choice of one may cost in exactness."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: Algorithm = Field(
        default="allreduce",
        title="Algorithm",
        description="how gradients are exchanged. allreduce: the exact sum. fp16, bf16: in two bytes a value instead "
        "of four. bytegrad: in one byte. powersgd: of matrices a product of two thin ones, with error feedback. auto: "
        "whichever is the fastest of those that `allow` admits, tried at the start and after each resize",
    )
    allow: Allowed | None = Field(
        default=None,
        title="Allow",
        description="the most that the exchange may be: exact; lossy, compressed gradients; averaging, averaged "
        "weights besides. If absent what the algorithm needs, and exact for auto, which has no choice then",
        examples=["lossy"],
    )

    @property
    def candidates(self) -> tuple[str, ...]:
        """What `auto` may choose from."""
        return admitted(self.allow)

    @model_validator(mode="after")
    def _is_allowed(self) -> Self:
        order = get_args(Allowed)
        needed = CLASSES.get(self.algorithm, EXACTLY)
        if self.allow is not None and order.index(needed) > order.index(self.allow):
            within = admitted(self.allow)
            raise ValueError(
                f"algorithm {self.algorithm!r} is {needed}, and allow is {self.allow!r}; possible are allow: {needed}, "
                f"or one of {', '.join(within)}"
            )
        return self
