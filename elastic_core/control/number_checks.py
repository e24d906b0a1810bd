"""Every number that comes in with a trainer's message lies in the range that its field names (`domain.number_ranges`).

Derived from the types of the messages, so that no field is without a range: an integer that names none is a `COUNT`, a
float an `AMOUNT`. Of what may be any JSON every number is one that JSON knows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from elastic_core.domain.number_ranges import AMOUNT, COUNT, Within
from elastic_core.errors import UserError
from elastic_core.spec.bounds import problem_of_numbers

Check = Callable[[Any, str], None]  # of a value, and where it stands in its message


def check_numbers(*messages: Any) -> None:
    """Raises `UserError` naming the first number that is out of its range."""
    for message in messages:
        check = _check_of_class(cast(Hashable, type(message)))
        if check is not None:
            check(message, "")


@cache
def _check_of_class(kind: Any) -> Check | None:
    """None where there is no number in it."""
    if is_dataclass(kind):
        types = get_type_hints(kind, include_extras=True)
        checks = {field.name: _check_of(types[field.name]) for field in fields(kind)}
        return _of_fields({name: check for name, check in checks.items() if check is not None})
    if issubclass(kind, bool | Enum) or not issubclass(kind, int | float):
        return None
    return _in(COUNT if issubclass(kind, int) else AMOUNT)


def _check_of(kind: Any) -> Check | None:
    """Of a field's type: what else than numbers, lists and objects of them or None is in it holds none."""
    arguments, origin = get_args(kind), get_origin(kind)
    if kind is Any:
        return _known_to_json
    if origin is Annotated:
        ranges = [note for note in arguments[1:] if isinstance(note, Within)]
        return _in(ranges[0]) if ranges else _check_of(arguments[0])
    if origin is None:
        return _check_of_class(kind)
    of_part = _check_of([part for part in arguments if part not in (NoneType, Ellipsis)][-1])
    if of_part is None:
        return None
    if origin in (Union, UnionType):
        return _if_given(of_part)
    return _of_values(of_part) if issubclass(origin, Mapping) else _of_items(of_part)


def _in(range_: Within) -> Check:
    def check(value: Any, where: str) -> None:
        if not range_.holds(value):
            raise UserError(
                f"{where or 'the number'} is {str(value)[:40]}; allowed is {range_}: leave it out, or send one that is"
            )

    return check


def _of_fields(checks: Mapping[str, Check]) -> Check | None:
    def check(message: Any, where: str) -> None:
        for name, of_field in checks.items():
            of_field(getattr(message, name), f"{where}.{name}" if where else name)

    return check if checks else None


def _of_values(of_value: Check) -> Check:
    def check(values: Mapping[str, Any], where: str) -> None:
        for name, value in values.items():
            of_value(value, f"{name[:40]!r} of {where}")

    return check


def _of_items(of_item: Check) -> Check:
    def check(items: Iterable[Any], where: str) -> None:
        for item in items:
            of_item(item, where)

    return check


def _if_given(of_value: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if value is not None:
            of_value(value, where)

    return check


def _known_to_json(value: Any, where: str) -> None:
    problem = problem_of_numbers(value)
    if problem is not None:
        raise UserError(f"{where}: {problem}")
