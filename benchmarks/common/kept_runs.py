"""Runs of a long benchmark are kept one by one, so that it may be stopped and started again, or made in parts.

A run is found again by what it was asked (`question`, the workload's fingerprint in it) and by the code that answered:
every module of the project that the given ones import, at any distance. What was answered by other code, or about
another workload, is never taken for this one. Promises nothing about times: a figure that depends on the machine must
not be kept here.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.common.report import OUT

ROOT = Path(__file__).parents[2]


def kept(name: str, question: Mapping[str, Any], modules: Sequence[str], answer: Callable[[], dict[str, Any]],
         out: Path = OUT) -> dict[str, Any]:  # fmt: skip
    """The answer to a question, kept under benchmarks/out/NAME-runs; asked only where it is not there yet.

    `modules`: dotted names of those that the answer depends on, such as "elastic_core.sim.engine.engine".
    """
    asked = {**question, "code": code_of(tuple(modules))}
    path = out / f"{name}-runs" / f"{fingerprint(asked)}.json"
    if not path.exists():
        found = answer()
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".part")
        written.write_text(json.dumps({"question": asked, "answer": found}, indent=1))
        written.replace(path)
    stored: dict[str, Any] = json.loads(path.read_text())["answer"]
    return stored


def fingerprint(content: Any) -> str:
    """Of anything that JSON can tell."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache(maxsize=64)
def code_of(modules: tuple[str, ...]) -> str:
    """Fingerprint of the source of these modules and of all of the project's that they import, docstrings aside."""
    pending, sources = list(modules), dict[str, str]()
    while pending:
        name = pending.pop()
        path = _source(name)
        if name not in sources and path is not None:
            tree = ast.parse(path.read_text())
            sources[name] = ast.dump(_without_words(tree))
            pending += _imported(tree)
    return fingerprint(sources)


def _source(name: str) -> Path | None:
    place = ROOT.joinpath(*name.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _imported(tree: ast.Module) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.split(".")[0] in ("elastic_core", "benchmarks")]


def _without_words(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree
