"""Domain objects to plain JSON values and back, unchanged and checked."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")
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
