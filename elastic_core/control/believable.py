"""Numbers of the ledger that a job told, where they were stored before their range was held at the door
(`control.number_checks`), or are of a model that diverges: what is out of its range counts as not told.

What many jobs are read with at once must not fail, nor overflow, for one of them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double
from sqlalchemy.types import TypeDecorator

from elastic_core.domain.number_ranges import Within


def within(expression: str, range_: Within) -> str:
    """SQL: whether the number is in its range. NaN is in none: in PostgreSQL it is greater than any number."""
    return f"{expression} BETWEEN {range_.least!r} AND {range_.most!r}"


def believed(expression: str, range_: Within) -> str:
    """SQL: the number, or NULL where it is out of its range."""
    return f"CASE WHEN {within(expression, range_)} THEN {expression} END"


def timing(name: str, range_: Within) -> str:
    """SQL: what the checkpoint's timings tell under this name, or NULL."""
    return believed(f"(timings ->> '{name}')::float8", range_)


class Believed(TypeDecorator[float]):
    """A column whose numbers are read as NULL where they are out of their range."""

    impl = Double
    cache_ok = True

    def __init__(self, range_: Within) -> None:
        super().__init__()
        self.range = range_

    def process_result_value(self, value: Any, dialect: object) -> float | None:  # noqa: ARG002
        return value if value is not None and self.range.holds(value) else None
