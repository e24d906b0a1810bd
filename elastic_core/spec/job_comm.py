"""How the replicas of a job's model exchange gradients, and how far that may be from the exact sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Algorithm = Literal["allreduce", "fp16", "bf16", "bytegrad", "powersgd", "onebit_adam", "qadam"]
MOMENTA: frozenset[Algorithm] = frozenset({"onebit_adam", "qadam"})  # exchange those, and not gradients
Allowed = Literal["exact", "lossy", "averaging"]
MOST_WARMUP_STEPS = 1_000_000
CLASSES: Mapping[Algorithm, Allowed] = {
    "allreduce": "exact",
    "fp16": "lossy",
    "bf16": "lossy",
    "bytegrad": "lossy",
    "powersgd": "lossy",
    "onebit_adam": "lossy",
    "qadam": "lossy",
}


class Comm(BaseModel):
    """An algorithm, and the most that any choice of one may cost in exactness."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: Algorithm = Field(
        default="allreduce",
        title="Algorithm",
        description="how gradients are exchanged. allreduce: the exact sum. fp16, bf16: in two bytes a value instead "
        "of four. bytegrad: in one byte. powersgd: of matrices a product of two thin ones, with error feedback. "
        "onebit_adam, qadam: of Adam and AdamW, after a warm-up, the momenta in one bit, in one byte a value",
    )
    allow: Allowed | None = Field(
        default=None,
        title="Allow",
        description="the most that the exchange may be: exact; lossy, compressed gradients; averaging, averaged "
        "weights besides. What the algorithm needs, if absent",
        examples=["lossy"],
    )

    warmup_steps: int = Field(
        default=100,
        ge=1,
        le=MOST_WARMUP_STEPS,
        title="Warm-up steps",
        description="optimizer steps by the exact sum, after which onebit_adam and qadam freeze Adam's variance; other "
        "algorithms have none",
        examples=[1000],
    )

    @model_validator(mode="after")
    def _is_allowed(self) -> Self:
        order = get_args(Allowed)
        needed = CLASSES[self.algorithm]
        if self.allow is not None and order.index(needed) > order.index(self.allow):
            within = [name for name, of in CLASSES.items() if order.index(of) <= order.index(self.allow)]
            raise ValueError(
                f"algorithm {self.algorithm!r} is {needed}, and allow is {self.allow!r}; possible are allow: {needed}, "
                f"or one of {', '.join(within)}"
            )
        return self
