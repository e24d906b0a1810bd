"""What is trained: the tasks of `examples`, each with a range of 16 times its base batch, and the rules that a job may
choose. A training takes seconds of one core.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

RANGE = 16  # largest batch of the range over the base


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A task and the job that trains it. `epochs` are passes at the base batch."""

    name: str
    entry_point: str
    base: int
    epochs: float
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """How learning rates follow the batch, and what the job's work is counted in."""

    learning_rate: Literal["sqrt", "linear", "adascale"]
    measure: Literal["samples", "progress"]

    def __str__(self) -> str:
        return f"{self.learning_rate}, {self.measure}"


SUBJECTS = (
    Subject(name="digits", entry_point="examples.digits:Digits", base=64, epochs=20),
    # Small, and few passes: a larger net learns the 354 patients by heart, and who learns less is then better.
    Subject(name="tabular", entry_point="examples.tabular:Tabular", base=16, epochs=40, params={"width": 16}),
    Subject(
        name="bytes", entry_point="examples.bytes_lm:BytesLM", base=16, epochs=1,
        params={"width": 32, "context": 32, "train_bytes": 256_000},
    ),
)  # fmt: skip
RULES = (Rule("sqrt", "samples"), Rule("linear", "samples"), Rule("adascale", "progress"))
