"""Domain objects to plain JSON values and back, unchanged and checked."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from elastic_core.text import shortened

T = TypeVar("T")
MOST_TOLD = 5
MOST_NAMED = 20_000  # pydantic lists all problems or none, and some MiB of JSON may have millions
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(value: Any) -> Any:
    """Plain JSON values of a domain object (dataclasses become objects, tuples lists)."""
    return _adapter(type(value)).dump_python(value, mode="json")


def from_json(kind: type[T], value: Any) -> T:
    """The domain object of `kind` that `to_json` wrote. Raises `pydantic.ValidationError` on anything else."""
    loaded: T = _adapter(kind).validate_python(value)
    return loaded


def first_problems(error: ValidationError) -> str:
    """In one line where the first `MOST_TOLD` are, what is wrong, the value seen, and how many more there are: however
    large what was validated is, this is short."""
    count = error.error_count()
    if count > MOST_NAMED:
        return f"{count} values are wrong, too many to name any"
    told = [_told(dict(problem)) for problem in error.errors(include_url=False)[:MOST_TOLD]]
    return "; ".join([*told, *([f"and {count - len(told)} more"] if count > len(told) else ())])


def _told(problem: dict[str, Any]) -> str:
    where = shortened(".".join(map(str, problem["loc"])), 80) or "the whole"
    if problem["type"] == "missing":
        return f"{where}: is needed and was not given"
    given = problem["input"]
    seen = repr(given[:40]) if isinstance(given, str) else type(given).__name__
    seen = str(given)[:40] if isinstance(given, int | float | None) else seen
    return f"{where}: {shortened(problem['msg'], 200)}, seen {seen}"
