"""How a call of the contract travels: `POST <base>/service/<method>` or `/trainer/<method>`, arguments as a JSON
object, the result as JSON. Derived from the Protocol classes themselves, so that client and server cannot differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from elastic_core.domain import first_problems
from elastic_core.errors import BY_CODE, ElasticError, InfrastructureError, UserError
from elastic_core.protocol.encoding import dumps, loads
from elastic_core.protocol.service import ServiceControl
from elastic_core.protocol.trainer import MOST_ENTRIES, TrainerControl, check_count
from elastic_core.text import shortened

_BEFORE_VALUES = (b",", b"[", b"{")


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    parameters: Mapping[str, Any]  # types
    required: frozenset[str]
    result: Any  # type

    def encode_arguments(self, arguments: Mapping[str, Any]) -> bytes:
        return dumps(_plain(arguments)).encode()

    def decode_arguments(self, body: bytes, most_values: int | None = None) -> dict[str, Any]:
        """Raises `UserError` naming what is wrong, of much of it the first.

        `most_values`: more of them are not read. What stands before values is counted, in texts as well.
        """
        if most_values is not None and (values := sum(map(body.count, _BEFORE_VALUES))) > most_values:
            raise UserError(
                f"the body of {self.name!r} has {values} values; allowed are {most_values}: send less at once"
            )
        try:
            plain = loads(body or b"{}")
        except ValueError as error:
            raise UserError(f"the body of {self.name!r} is not JSON: {error}") from error
        names = set(plain) if isinstance(plain, dict) else set()
        if not isinstance(plain, dict) or not self.required <= names <= self.parameters.keys():
            raise UserError(
                f"{self.name!r} takes a JSON object with {sorted(self.parameters)}, of which {sorted(self.required)} "
                f"are needed; got {shortened(str(sorted(names)), 200) if names else type(plain).__name__}"
            )
        for name, value in plain.items():
            if name in MOST_ENTRIES and isinstance(value, list):
                check_count(name, len(value), MOST_ENTRIES[name])
        try:
            return {name: _adapter(self.parameters[name]).validate_python(value) for name, value in plain.items()}
        except ValidationError as error:
            raise UserError(f"{self.name!r} was called with wrong values: {first_problems(error)}") from None

    def encode_result(self, result: Any) -> bytes:
        return dumps(_plain(result)).encode()

    def decode_result(self, body: bytes) -> Any:
        return _adapter(self.result).validate_python(loads(body))


@cache
def _adapter(of: Any) -> TypeAdapter[Any]:
    """Made when it is first asked for, and once for all methods that have it: a task asks for few."""
    return TypeAdapter(of)


def _plain(value: Any) -> Any:
    """Not by the adapter of the declared type: that one turns a NaN inside a `Sequence[...]` into null."""
    return to_jsonable_python(value, inf_nan_mode="constants")


def _method(protocol: type, name: str) -> Method:
    function = getattr(protocol, name)
    hints = get_type_hints(function)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    return Method(
        name=name,
        parameters={p.name: hints[p.name] for p in parameters},
        required=frozenset(p.name for p in parameters if p.default is inspect.Parameter.empty),
        result=hints.get("return", NoneType),
    )


@cache
def methods(protocol: type) -> Mapping[str, Method]:
    """Every method of a contract by name, with those of the contracts that it is the sum of."""
    names = [name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if not name.startswith("_")]
    return {name: _method(protocol, name) for name in names}


def make_adapters(protocol: type) -> None:
    """Of all methods of a contract, ahead: forks of this process find them made."""
    for method in methods(protocol).values():
        for of in (*method.parameters.values(), method.result):
            _adapter(of)


def service_methods() -> Mapping[str, Method]:
    return methods(ServiceControl)


def trainer_methods() -> Mapping[str, Method]:
    return methods(TrainerControl)


def encode_error(error: ElasticError) -> bytes:
    return dumps({"code": error.code, "message": str(error)}).encode()


def decode_error(status: int, body: bytes) -> ElasticError:
    """The error that the server meant; `InfrastructureError` for an answer that is not ours (a proxy's, a crash's)."""
    try:
        answer = loads(body)
        kind, message = BY_CODE[answer["code"]], str(answer["message"])
    except (ValueError, KeyError, TypeError):
        said = body[:200].decode(errors="replace")
        return InfrastructureError(f"the control API answered {status} with something that is not its own: {said!r}")
    return kind(message)
