"""Pydantic's errors as sentences for a person: path, what is wrong, the value seen, what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from elastic_core.errors import UserError
from elastic_core.text import near_miss, shortened

Model = TypeVar("Model", bound=BaseModel)
Path = Sequence[int | str]
MOST_TOLD = 50  # a near-miss is looked for at each unknown key: thousands of them would take a second
NO_KEY = "there is no such key"


def parse(kind: type[Model], data: Any, what: str) -> Model:
    """`data` (plain JSON values) as a model. Raises `UserError` with ALL problems, one line each; of more than
    `MOST_TOLD` the first, and how many there are."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        told = describe(kind, error)
        raise refuse(what, told, max(0, error.error_count() - MOST_TOLD) if len(told) == MOST_TOLD else 0) from error


def refuse(what: str, problems: Sequence[str], more: int = 0) -> UserError:
    """`more`: problems that are not told."""
    total = len(problems) + more
    lines = [*problems, *([f"and {more} more"] if more else ())]
    count = "1 problem" if total == 1 else f"{total} problems"
    return UserError(f"the {what} has {count}:" + "".join(f"\n- {line}" for line in lines))


def describe(kind: type[BaseModel], error: ValidationError) -> tuple[str, ...]:
    """One sentence a problem, in the order of the fields; `MOST_TOLD` at most."""
    problems: list[dict[str, Any]] = [dict(problem) for problem in error.errors(include_url=False)]
    paths: list[Path] = [problem["loc"] for problem in problems]
    told = (problem for problem in problems if not _follows_from_deeper(problem, paths))
    return tuple(_sentence(kind, problem) for problem in islice(told, MOST_TOLD))


def _follows_from_deeper(problem: dict[str, Any], paths: Sequence[Path]) -> bool:
    """A list whose items are wrong is also called too short, which would only mislead."""
    path = problem["loc"]
    return problem["type"] == "too_short" and any(len(p) > len(path) and p[: len(path)] == path for p in paths)


def unknown_key(key: str, known: Iterable[str]) -> str:
    """What to say of a key that does not exist: the near-miss, and all that exist."""
    names = sorted(known)
    near = near_miss(key, names, cutoff=0.6)
    hint = f"; did you mean {near!r}?" if near else "."
    return f"{NO_KEY}{hint} Allowed: {', '.join(names)}"


def path_problem(kind: type[BaseModel], path: Sequence[str]) -> str | None:
    """Why there is no field at this path of a model, `path[0].path[1]...`; None where there is one, or may be."""
    here: type[BaseModel] = kind
    for depth, part in enumerate(path):
        if part not in here.model_fields:
            return unknown_key(part, here.model_fields)
        annotation = here.model_fields[part].annotation
        inner = _model_in(annotation)
        if inner is None:
            free = annotation is dict or get_origin(annotation) is dict  # of what it holds nothing is known here
            whole = ".".join(path[: depth + 1])
            return None if free or depth + 1 == len(path) else f"{whole} is one value, and has no fields of its own"
        here = inner
    return None


def dotted_fields(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """All fields of a model and of those in it, by their paths."""
    for name, field in kind.model_fields.items():
        yield prefix + name
        inner = _model_in(field.annotation)
        if inner is not None:
            yield from dotted_fields(inner, f"{prefix}{name}.")


def _sentence(kind: type[BaseModel], problem: dict[str, Any]) -> str:
    path: Path = problem["loc"]
    where = ".".join(map(str, path)) or "the whole"
    if problem["type"] == "extra_forbidden":
        parent = _model_at(kind, path[:-1])
        return f"{where}: {unknown_key(str(path[-1]), parent.model_fields if parent else ())}"
    if problem["type"] == "missing":
        return f"{where}: is needed and was not given{_help(kind, path)}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "value_error":  # from our own validators, which say all there is to say
        return f"{where}: {message}"
    return f"{where}: {message[:1].lower()}{message[1:]}, seen {_short(problem['input'])}{_help(kind, path)}"


def _short(value: Any) -> str:
    return shortened(repr(value), 80)


def _help(kind: type[BaseModel], path: Path) -> str:
    field = _field_at(kind, path)
    return f" ({field.description})" if field is not None and field.description else ""


def _field_at(kind: type[BaseModel], path: Path) -> FieldInfo | None:
    parent = _model_at(kind, path[:-1])
    return parent.model_fields.get(str(path[-1])) if parent is not None and path else None


def _model_at(kind: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The model that a path leads to, through nested models and tuples of them."""
    here: type[BaseModel] | None = kind
    for part in path:
        if isinstance(part, str):
            field = here.model_fields.get(part) if here is not None else None
            here = _model_in(field.annotation) if field is not None else None
    return here


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)
