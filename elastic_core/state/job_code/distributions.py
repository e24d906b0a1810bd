"""Which installed packages a job's code needs: the distributions of what it imports, as this environment has them.

What its code imports is read from its source, as its files are found (`bundle`): nothing is imported to find it, and
what an expression imports is not seen. The platform and the standard library are none of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from elastic_core.state.job_code import bundle


def requirements_of(entry_point: str, project: Path) -> tuple[str, ...]:
    """`name==version` of each, by name: of what the code of an entry point imports, and of the entry point itself where
    that is installed."""
    owners = packages_distributions()
    own = [path for path, _ in bundle.files_of_code(entry_point, project) if path.suffix == ".py"]
    imported = {entry_point.partition(":")[0]}.union(*(set(_imports(path)) for path in own))
    found = {name for module in imported for name in _distributions(module, owners)}
    return tuple(sorted(pinned for name in found if (pinned := _pinned(name)) is not None))


def _imports(path: Path) -> Iterator[str]:
    """Dotted names that may be modules: of `from a.b import c` both `a.b` and `a.b.c`."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _distributions(module: str, owners: Mapping[str, list[str]]) -> set[str]:
    """Who has brought the module. Of a package that several have a part in (`google`), those with that very part."""
    top = module.partition(".")[0]
    candidates = set(owners.get(top, ())) if top not in bundle.PLATFORM else set()
    return candidates if len(candidates) < 2 else {name for name in candidates if _has(name, module)}


def _has(name: str, module: str) -> bool:
    path = module.replace(".", "/")
    files = distribution(name).files or ()
    return any(str(file) in (f"{path}.py", f"{path}/__init__.py") for file in files)


def _pinned(name: str) -> str | None:
    """Without the build's own part of the version ("+cpu"), which no index has."""
    try:
        return f"{name}=={distribution(name).version.partition('+')[0]}"
    except PackageNotFoundError:
        return None
