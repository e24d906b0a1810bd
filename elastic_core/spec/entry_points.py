"""Which code a job may name: `module:Class` or `module:function`, from modules that the operator allows.

A spec comes over the network, and importing a module runs it. So the module's name is matched against the
operator's patterns BEFORE anything is imported, and what was found must have been defined in an allowed
module too: a name that an allowed module merely imported (`examples.digits:subprocess`) is refused.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from elastic_core.errors import UserError
from elastic_core.text import did_you_mean, near_miss

_NAME = r"[A-Za-z][A-Za-z0-9_]*"
_ENTRY_POINT = re.compile(rf"({_NAME}(?:\.{_NAME})*):({_NAME})")


def parse_patterns(patterns: str | Sequence[str]) -> tuple[str, ...]:
    """`Settings.tasks` ("a.*, b.c") or a sequence, as a tuple of patterns. `*` also stands for dots."""
    parts = patterns.split(",") if isinstance(patterns, str) else patterns
    return tuple(stripped for part in parts if (stripped := part.strip()))


def check(entry_point: str, patterns: str | Sequence[str]) -> tuple[str, str]:
    """(module, attribute) of an entry point that is allowed; nothing is imported.

    Raises `UserError` naming the patterns, and the near-miss if there is one.
    """
    allowed = parse_patterns(patterns)
    match = _ENTRY_POINT.fullmatch(entry_point)
    if match is None:
        raise UserError(
            f"Entry point {entry_point!r} is not of the form module:Class or module:function. Write a dotted module "
            f"name, one colon and one name, for example examples.digits:Digits; no paths, no leading underscores."
        )
    module, attribute = match.groups()
    if not is_allowed(module, allowed):
        raise UserError(
            f"Entry point {entry_point!r} is not allowed: module {module!r} matches none of the operator's patterns "
            f"({', '.join(allowed) or 'none are set'}).{_near_pattern(module, allowed)} "
            f"Move the task into an allowed module, or ask the operator to add its module to ELASTIC_TASKS."
        )
    return module, attribute


def reach(project: Path) -> None:
    """Have modules of a folder, the project's or that of pinned code, found by `load`, before others of their names."""
    folder = str(project.absolute())
    if folder not in sys.path:
        sys.path.insert(0, folder)


def load(entry_point: str, patterns: str | Sequence[str]) -> Any:
    """The class or function that an allowed entry point names.

    Raises `UserError` when the module or the name is not there, or when the name comes from elsewhere. An
    exception of the module's own code is not caught.
    """
    module_name, attribute = check(entry_point, patterns)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not _is_prefix(error.name, module_name):
            raise  # the module is there; something that IT imports is not
        raise UserError(
            f"Entry point {entry_point!r}: there is no module {error.name!r}."
            f"{_suggest(module_name, _siblings(module_name))}"
        ) from error
    entry = getattr(module, attribute, None)
    entries = {name: value for name, value in vars(module).items() if _is_entry(value)}
    offered = sorted(name for name, value in entries.items() if value.__module__ == module_name)
    if entry is None or not _is_entry(entry):
        what = "is no class or function" if entry is not None else "does not exist"
        raise UserError(
            f"Entry point {entry_point!r}: {attribute!r} {what} in {module_name}.{_suggest(attribute, offered)} "
            f"The module offers: {', '.join(offered) or 'nothing'}."
        )
    if not is_allowed(entry.__module__, parse_patterns(patterns)):
        raise UserError(
            f"Entry point {entry_point!r}: {attribute!r} is defined in {entry.__module__!r}, which the operator's "
            f"patterns do not allow. Name something that {module_name} defines itself."
        )
    return entry


def is_allowed(module: str, patterns: Iterable[str]) -> bool:
    """Whether the operator's patterns let a job name this module."""
    return any(fnmatchcase(module, pattern) for pattern in patterns)


def _is_entry(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _is_prefix(shorter: str, longer: str) -> bool:
    return longer == shorter or longer.startswith(shorter + ".")


def _near_pattern(module: str, patterns: Sequence[str]) -> str:
    """A hint for `example.digits` when `examples.*` is allowed: the same module under an allowed package."""
    head, _, rest = module.partition(".")
    heads = {pattern.partition(".")[0] for pattern in patterns}
    near = near_miss(head, heads, cutoff=0.6)
    candidate = f"{near}.{rest}" if rest else near
    if candidate and candidate != module and is_allowed(candidate, patterns):
        return f" Did you mean {candidate!r}?"
    return ""


def _suggest(name: str, known: Iterable[str]) -> str:
    return did_you_mean(name, known, cutoff=0.6)


def _siblings(module: str) -> list[str]:
    """Modules beside the wanted one; its parent package is allowed to be missing as well."""
    parent = module.rpartition(".")[0]
    if not parent:
        return []
    try:
        package = importlib.import_module(parent)
    except ModuleNotFoundError:
        return []
    return [f"{parent}.{sibling.name}" for sibling in pkgutil.iter_modules(getattr(package, "__path__", []))]
