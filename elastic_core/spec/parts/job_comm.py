"""How the replicas of a job's model exchange gradients, and how far that may be from the exact sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from elastic_core.domain import AUTO, EXACT, Layout

Algorithm = Literal[
    "allreduce",
    "fp16",
    "bf16",
    "bytegrad",
    "powersgd",
    "onebit_adam",
    "qadam",
    "local_sgd",
    "diloco",
    "decentralized",
    "decentralized_all",
    "low_precision_decentralized",
    "async_average",
    "partial_backward",
    "auto",
]
MOMENTA: frozenset[Algorithm] = frozenset({"onebit_adam", "qadam"})  # exchange those, and not gradients
STEPS_ALONE: frozenset[Algorithm] = MOMENTA | {"diloco"}  # by which one slot, which exchanges nothing, is not exact
Allowed = Literal["exact", "lossy", "averaging", "partial"]
MOST_WARMUP_STEPS = 1_000_000
CLASSES: Mapping[str, Allowed] = {
    "allreduce": "exact",
    "fp16": "lossy",
    "bf16": "lossy",
    "bytegrad": "lossy",
    "powersgd": "lossy",
    "onebit_adam": "lossy",
    "qadam": "lossy",
    "local_sgd": "averaging",
    "diloco": "averaging",
    "decentralized": "averaging",
    "decentralized_all": "averaging",
    "low_precision_decentralized": "averaging",
    "async_average": "averaging",
    "partial_backward": "partial",
}
_NOT_WHOLE: Mapping[Allowed, str] = {"averaging": "weights", "partial": "gradients of parts of it"}
HIERARCHICAL: tuple[Algorithm, ...] = (
    "allreduce", "fp16", "bf16", "bytegrad", "local_sgd", "diloco", "decentralized_all",
)  # fmt: skip
_AT_AN_INTERVAL: tuple[Algorithm, ...] = ("local_sgd", "diloco", "async_average")
_INTERVAL = 8


STAGE_RATIO = "stage_ratio"  # what a job has diverged under whose stages sent each other less
EXACTLY: Allowed = "exact"
PARTLY: Allowed = "partial"  # gradients of some samples only, which is said or not done


def admitted(allow: str | None) -> tuple[str, ...]:
    """The algorithms that are no further from the exact sum than this: `Allowed`, or nothing said."""
    order = get_args(Allowed)
    return tuple(name for name, of in CLASSES.items() if order.index(of) <= order.index(allow or EXACTLY))


class Comm(BaseModel):
    """An algorithm, and the most that any choice of one may cost in exactness."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: Algorithm = Field(
        default="allreduce",
        title="Algorithm",
        description="how gradients are exchanged. allreduce: the exact sum. fp16, bf16: in two bytes a value instead "
        "of four. bytegrad: in one byte. powersgd: of matrices a product of two thin ones, with error feedback. "
        "onebit_adam, qadam: of Adam and AdamW, after a warm-up, the momenta in one bit, in one byte a value. "
        "The others exchange weights. local_sgd: their average at an interval. diloco: in one byte a value, with an "
        "outer optimizer. decentralized, decentralized_all: with one rank a step, or with all, while the next step "
        "computes. low_precision_decentralized: with the neighbours in a ring, in one byte a value. async_average: "
        "beside training. partial_backward: each rank propagates back through a part of the layers, in turn. auto: "
        "whichever is the fastest of those that `allow` admits, but for onebit_adam and qadam, "
        "tried at the start and after each resize",
    )
    allow: Allowed | None = Field(
        default=None,
        title="Allow",
        description="the most that the exchange may be: exact; lossy, compressed gradients; averaging, averaged "
        "weights besides; partial, gradients of a layer by some of the ranks besides. If absent what the algorithm "
        "needs, and exact for auto, which has no choice then; partial has to be said. auto chooses by time alone: with "
        "averaging it ends at what exchanges the least, and the same samples may teach less",
        examples=["lossy"],
    )

    interval: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        title="Interval",
        description=f"optimizer steps between two averages of weights, with an algorithm that averages at an interval; "
        f"{_INTERVAL}, if absent",
        examples=[16],
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

    hierarchical: bool = Field(
        default=False,
        title="Hierarchical",
        description="exchange within each node first, and then between one rank of each: a node's link carries what "
        "one rank sends. Of a job whose ranks share nodes, and are on several",
    )

    stage_ratio: float | None = Field(
        default=None,
        gt=1,
        le=1000,
        title="Stage ratio",
        description="by how much activations and their gradients shrink on the slowest link between stages of a "
        "pipeline: their greatest values travel, what is left out is added to the next. Faster links shrink them by as "
        "much less. If absent, they travel as they are",
        examples=[8],
    )

    guard: bool = Field(
        default=True,
        title="Guard",
        description="where training diverges under an exchange that is not exact, the job goes on from its last "
        "checkpoint by the exact sum, once and for good. false: never",
    )

    @property
    def steps_between_averages(self) -> int:
        return self.interval or _INTERVAL

    def steps_of(self, algorithm: str) -> int:
        """In which an algorithm, which may be in force by choice, exchanges once."""
        return self.steps_between_averages if algorithm in _AT_AN_INTERVAL else 1

    def options_of(self, algorithm: str) -> str:
        """What else than the algorithm the time of a step hangs on; "" for the defaults."""
        steps = self.steps_of(algorithm)
        options = {
            f"interval={steps}": algorithm in _AT_AN_INTERVAL and steps != _INTERVAL,
            "hierarchical": self.hierarchical,
            f"stage_ratio={self.stage_ratio}": self.stage_ratio is not None,
        }
        return " ".join(words for words, given in options.items() if given)

    @property
    def averages(self) -> bool:
        """Weights are averaged, and no gradient of the whole batch is known."""
        return CLASSES.get(self.algorithm) == "averaging"

    @property
    def exchanged(self) -> str:
        """In words; "" where it is the gradient of the whole batch."""
        if self.algorithm in MOMENTA:
            return "momenta"
        classes = {CLASSES[name] for name in (self.candidates if self.algorithm == AUTO else (self.algorithm,))}
        found = [words for of, words in _NOT_WHOLE.items() if of in classes]
        return " or ".join(found)

    def shrinks_stages(self, layout: Layout) -> bool:
        """Whether stages send each other less than all, so that a job in this layout is not exact."""
        return self.stage_ratio is not None and layout.pipeline > 1

    @property
    def candidates(self) -> tuple[str, ...]:
        """What `auto` may choose from."""
        return admitted(self.allow)

    @property
    def asked(self) -> str:
        """What an allocation of the job names; a choice from one is none."""
        return EXACT if self.algorithm == AUTO and len(self.candidates) == 1 else self.algorithm

    @model_validator(mode="after")
    def _has_an_interval(self) -> Self:
        if self.interval is not None and self.algorithm not in _AT_AN_INTERVAL:
            own = (
                f"tries averages at an interval of {_INTERVAL}" if self.algorithm == AUTO else "exchanges at every step"
            )
            raise ValueError(
                f"interval is {self.interval}, and algorithm {self.algorithm!r} {own}; possible are "
                f"interval left out, or one of {', '.join(_AT_AN_INTERVAL)}"
            )
        return self

    @model_validator(mode="after")
    def _has_stages(self) -> Self:
        if self.hierarchical and self.algorithm not in HIERARCHICAL:
            raise ValueError(
                f"hierarchical is true, and algorithm {self.algorithm!r} has no stage within nodes; possible are "
                f"hierarchical left out, or one of {', '.join(HIERARCHICAL)}"
            )
        return self

    @model_validator(mode="after")
    def _is_allowed(self) -> Self:
        if self.stage_ratio is not None and self.allow == EXACTLY:
            raise ValueError(
                f"stage_ratio is {self.stage_ratio:g}, by which activations lose something, and allow is {EXACTLY!r}; "
                "possible are allow: lossy, or stage_ratio left out"
            )
        order = get_args(Allowed)
        needed = CLASSES.get(self.algorithm, EXACTLY)
        if needed == PARTLY and self.allow is None:
            raise ValueError(
                f"algorithm {self.algorithm!r} computes gradients of a layer on some of the ranks only, which a job "
                f"has to allow; possible are allow: {PARTLY} besides, or another algorithm"
            )
        if self.allow is not None and order.index(needed) > order.index(self.allow):
            within = admitted(self.allow)
            raise ValueError(
                f"algorithm {self.algorithm!r} is {needed}, and allow is {self.allow!r}; possible are allow: {needed}, "
                f"or one of {', '.join(within)}"
            )
        return self
