"""JSON schemas of a task's parameters, as far as their annotations in the source say what they take.

Nothing is imported. What an annotation does not say (a class or an alias of one's own) is left open: a form then takes
any value, and the task's own code judges it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

_TYPES: Mapping[str, Mapping[str, Any]] = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
    # of pydantic
    "PositiveInt": {"type": "integer", "exclusiveMinimum": 0},
    "NonNegativeInt": {"type": "integer", "minimum": 0},
    "PositiveFloat": {"type": "number", "exclusiveMinimum": 0},
    "NonNegativeFloat": {"type": "number", "minimum": 0},
}
_LISTS = frozenset({"list", "List", "tuple", "Tuple", "Sequence"})
_MAPPINGS = frozenset({"dict", "Dict", "Mapping"})
# Arguments of pydantic's `Field` as keywords of a schema, by the type that they bound.
_OF_NUMBERS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum",
               "multiple_of": "multipleOf"}  # fmt: skip
_BOUNDS = {
    "integer": _OF_NUMBERS,
    "number": _OF_NUMBERS,
    "string": {"min_length": "minLength", "max_length": "maxLength"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
}


def last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`, of `a.b.c[...]` and of "a.b.c" in quotes; "" of what is no name."""
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.rpartition(".")[2]
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def field_words(node: ast.expr | None) -> dict[str, ast.expr]:
    """The named arguments of `Field(...)`, or of those that an `Annotated[...]` has; {} of anything else."""
    if isinstance(node, ast.Call) and last_name(node.func) == "Field":
        return {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    words: dict[str, ast.expr] = {}
    if isinstance(node, ast.Subscript) and last_name(node) == "Annotated":
        for part in _parts(node)[1:]:
            words |= field_words(part)
    return words


def schema_of(annotation: ast.expr, words: Mapping[str, ast.expr]) -> dict[str, Any]:
    """`words`: the arguments of the parameter's `Field`. {} where it may take any kind of value. That it may be None is
    left out: a form has its own way to say nothing."""
    choices = [choice for choice in _choices(_read(annotation)) if not _is_none(choice)]
    if len(choices) != 1:
        return {}
    (choice,) = choices
    if isinstance(choice, ast.Subscript) and last_name(choice) == "Annotated":
        return schema_of(_parts(choice)[0], {**field_words(choice), **words})
    schema = _plain(choice)
    bounds = _BOUNDS.get(schema.get("type", ""), {})
    found = {bounds[name]: _number(value) for name, value in words.items() if name in bounds}
    return {**schema, **{name: number for name, number in found.items() if number is not None}}


def _plain(node: ast.expr) -> dict[str, Any]:
    name = last_name(node)
    if name in _MAPPINGS:
        return {"type": "object"}
    if not isinstance(node, ast.Subscript):
        return dict(_TYPES.get(name, {}))
    if name == "Literal":
        return _one_of(node)
    if name in _LISTS:
        kinds = [_plain(_read(part)) for part in _parts(node) if not _is_ellipsis(part)]
        alike = kinds and kinds[0] and all(kind == kinds[0] for kind in kinds)
        return {"type": "array", "items": kinds[0]} if alike else {}
    return {}


def _one_of(node: ast.Subscript) -> dict[str, Any]:
    values = [part.value for part in _parts(node) if isinstance(part, ast.Constant) and part.value is not None]
    for kind, name in ((str, "string"), (int, "integer")):
        if values and all(type(value) is kind for value in values):
            return {"type": name, "enum": values}
    return {}


def _choices(node: ast.expr) -> Iterator[ast.expr]:
    """What a union is made of; the annotation itself where it is none."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _choices(_read(node.left))
        yield from _choices(_read(node.right))
    elif isinstance(node, ast.Subscript) and last_name(node) in ("Optional", "Union"):
        for part in _parts(node):
            yield from _choices(_read(part))
    else:
        yield node


def _parts(node: ast.Subscript) -> list[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _read(node: ast.expr) -> ast.expr:
    """What an annotation in quotes says."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return ast.parse(node.value, mode="eval").body
        except (SyntaxError, ValueError, RecursionError):
            return node
    return node


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _number(node: ast.expr) -> float | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None  # an expression
    return value if type(value) in (int, float) else None
