"""Runs of a long benchmark are kept one by one, so that it may be stopped and started again, or made in parts.

A run is found again by what it was asked (`question`, the workload's fingerprint in it) and by the code that answered:
every module of the project that the given ones import, at any distance. What was answered by other code, or about
another workload, is never taken for this one. Promises nothing about times: a figure that depends on the machine must
not be kept here.

Runs made here lie under benchmarks/out/NAME-runs; `keep` adds them to docs/results/NAME.runs.jsonl, where other
checkouts of the same code find them.
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
RESULTS = ROOT / "docs" / "results"
PROJECT = ("elastic_core", "benchmarks", "examples")  # packages whose source is the project's


def kept(name: str, label: str, question: Mapping[str, Any], modules: Sequence[str],
         answer: Callable[[], dict[str, Any]], out: Path = OUT, results: Path = RESULTS) -> dict[str, Any]:  # fmt: skip
    """The answer to a question: one that is kept, or else a new one, which is kept under benchmarks/out/NAME-runs.

    `label`: names the run among the benchmark's own. `modules`: dotted names of those that the answer depends on, such
    as "elastic_core.sim.engine.engine".
    """
    run = fingerprint({**question, "code": code_of(tuple(modules))})
    path = out / f"{name}-runs" / f"{run}.json"
    if not path.exists():
        shared = _shared(name, results).get(label)
        if shared is not None and shared["run"] == run:
            return dict(shared["answer"])
        found = answer()
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".part")
        written.write_text(json.dumps({"label": label, "run": run, "answer": found}))
        written.replace(path)
    stored: dict[str, Any] = json.loads(path.read_text())["answer"]
    return stored


def keep(name: str, out: Path = OUT, results: Path = RESULTS) -> None:
    """Add the runs made here to docs/results/NAME.runs.jsonl, each in the place of an older one of its label."""
    made = [json.loads(path.read_text()) for path in sorted((out / f"{name}-runs").glob("*.json"), key=_age)]
    if made:
        runs = {**_shared(name, results), **{run["label"]: run for run in made}}
        lines = [json.dumps(runs[label]) + "\n" for label in sorted(runs)]
        (results / f"{name}.runs.jsonl").write_text("".join(lines))


def _age(path: Path) -> float:
    return path.stat().st_mtime


def _shared(name: str, results: Path) -> dict[str, dict[str, Any]]:
    """Label -> run."""
    path = results / f"{name}.runs.jsonl"
    runs = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {run["label"]: run for run in runs}


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
    return [name for name in names if name.split(".")[0] in PROJECT]


def _without_words(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree
