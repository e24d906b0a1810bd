"""What a job may name on this installation: classes and functions, their words and parameters, read from the source.

Nothing is imported, since reading a DAG file must not run users' code. So what only running would tell is not seen (a
class that a call makes, a base class of another package): a job may name it all the same.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

from elastic_core.spec.catalogue.param_schemas import field_words, last_name, schema_of
from elastic_core.spec.entry_points import is_allowed, parse_patterns

MOST_FILES, MOST_BYTES = 500, 2**20  # that are read, of each
PASSED_OVER = ("__pycache__", "node_modules")
BASE, LOOP = "Task", "Session"  # of `train.task`; of `train.session`, what a loop of one's own is given
MAKERS = ("session_task", "trainer_task", "lightning_task")  # decorators of `train` that make a function an entry point


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamListed:
    name: str
    kind: str  # as annotated
    default: str | None  # as written; None: it has to be given
    about: str
    schema: Mapping[str, Any] = field(default_factory=dict)  # JSON schema of its values; {}: of any kind


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryListed:
    entry_point: str
    about: str  # the first line of its docstring, or else of its module's
    params: tuple[ParamListed, ...]


def find_entries(project: Path, patterns: str | Sequence[str]) -> tuple[EntryListed, ...]:
    """Those in a project's folder that the patterns allow, by name. Files that are no Python are passed over; () where
    there is no such folder."""
    allowed = parse_patterns(patterns)
    modules = dict(_modules(project, allowed))
    classes = _Classes(modules)
    found = [
        EntryListed(
            entry_point=f"{module}:{node.name}",
            about=_first_line(node) or _first_line(tree),
            params=classes.params(module, node.name) if isinstance(node, ast.ClassDef) else classes.given(module, node),
        )
        for module, tree in modules.items()
        if is_allowed(module, allowed)
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and not node.name.startswith("_")
        and (classes.is_task(module, node.name) if isinstance(node, ast.ClassDef) else _is_loop(node))
    ]
    return tuple(sorted(found, key=lambda entry: entry.entry_point))


class _Classes:
    """Those of several modules. A name means the class of its own module, or else whichever has it."""

    def __init__(self, modules: Mapping[str, ast.Module]) -> None:
        self._known = {(module, node.name): node for module, tree in modules.items() for node in tree.body
                       if isinstance(node, ast.ClassDef)}  # fmt: skip
        self._anywhere = {name: (module, name) for module, name in reversed(self._known)}

    def is_task(self, module: str, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """At any distance."""
        place = self._find(module, name)
        if place is None or name in seen:
            return name == BASE
        bases = (last_name(base) for base in self._known[place].bases)
        return any(base == BASE or self.is_task(place[0], base, seen | {name}) for base in bases)

    def params(self, module: str, name: str) -> tuple[ParamListed, ...]:
        """Fields of the class that a task calls `Params`, or inherits."""
        place = self._find(module, name)
        if place is None:
            return ()
        for part in self._known[place].body:
            if isinstance(part, ast.ClassDef) and part.name == "Params":
                return tuple(_own_fields(part).values())
            if isinstance(part, ast.Assign) and any(last_name(target) == "Params" for target in part.targets):
                return tuple(self._fields(place[0], last_name(part.value)).values())
        for base in map(last_name, self._known[place].bases):
            if base != name and (found := self.params(place[0], base)):
                return found
        return ()

    def given(self, module: str, function: ast.FunctionDef) -> tuple[ParamListed, ...]:
        """Fields of the class that a function's decorator names as `params`."""
        for maker in _makers(function):
            for keyword in maker.keywords:
                if keyword.arg == "params":
                    return tuple(self._fields(module, last_name(keyword.value)).values())
        return ()

    def _fields(self, module: str, name: str) -> dict[str, ParamListed]:
        place = self._find(module, name)
        if place is None:
            return {}
        model = self._known[place]
        inherited: dict[str, ParamListed] = {}
        for base in map(last_name, model.bases):
            if base != name:
                inherited |= self._fields(place[0], base)
        return {**inherited, **_own_fields(model)}

    def _find(self, module: str, name: str) -> tuple[str, str] | None:
        return (module, name) if (module, name) in self._known else self._anywhere.get(name)


def _modules(project: Path, allowed: Sequence[str]) -> Iterator[tuple[str, ast.Module]]:
    heads = [pattern.partition(".")[0] for pattern in allowed]
    inside = project.iterdir() if heads and project.is_dir() else ()
    tops = sorted(path for path in inside if any(fnmatchcase(path.stem, head) for head in heads))
    for file in islice((file for top in tops for file in _sources(top)), MOST_FILES):
        parts = file.relative_to(project).with_suffix("").parts
        try:
            if not file.is_file() or file.stat().st_size > MOST_BYTES:
                continue
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # gone by now, or a job that names it is told
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), tree


def _sources(top: Path) -> Iterator[Path]:
    """A file, or those below a folder, whose names can be imported, as hidden ones (an editor's lock) cannot be.
    Installed packages are nobody's own: virtual environments are passed over."""
    if not top.is_dir():
        yield from [top] if top.suffix == ".py" and top.stem.isidentifier() else []
        return
    if not top.name.isidentifier():
        return
    for folder, folders, names in os.walk(top):
        if "pyvenv.cfg" in names or "conda-meta" in folders:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name.isidentifier() and name not in PASSED_OVER)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py") and name[:-3].isidentifier())


def _is_loop(node: ast.FunctionDef) -> bool:
    """A loop of one's own, which is given a session, or a function that a decorator makes one."""
    taken = node.args.args
    if _makers(node) or (len(taken) == 1 and taken[0].arg == "session"):
        return True
    annotation = taken[0].annotation if taken else None
    return annotation is not None and last_name(annotation) == LOOP


def _makers(node: ast.FunctionDef) -> list[ast.Call]:
    return [each for each in node.decorator_list if isinstance(each, ast.Call) and last_name(each.func) in MAKERS]


def _own_fields(model: ast.ClassDef) -> dict[str, ParamListed]:
    return {
        part.target.id: _field(part.target.id, part)
        for part in model.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and "ClassVar" not in ast.dump(part)
    }


def _field(name: str, part: ast.AnnAssign) -> ParamListed:
    default, words = part.value, field_words(part.annotation) | field_words(part.value)
    if isinstance(default, ast.Call) and last_name(default.func) == "Field":
        default = default.args[0] if default.args else words.get("default", words.get("default_factory"))
    if isinstance(default, ast.Constant) and default.value is Ellipsis:
        default = None
    told = words.get("description")
    return ParamListed(
        name=name, kind=ast.unparse(part.annotation), default=None if default is None else ast.unparse(default),
        about=told.value if isinstance(told, ast.Constant) and isinstance(told.value, str) else "",
        schema=schema_of(part.annotation, words),
    )  # fmt: skip


def _first_line(node: ast.ClassDef | ast.FunctionDef | ast.Module) -> str:
    lines = (ast.get_docstring(node) or "").splitlines()
    return lines[0].strip() if lines else ""
