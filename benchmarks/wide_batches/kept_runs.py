"""Runs that were trained already, a JSON line each, so that a study may be interrupted.

A run is known by its whole spec, defaults included: after a change of a default it is trained again. After a change of
code it is not: begin another file then.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.wide_batches.elastic_run import Outcome, Variant
from elastic_core.domain import from_json, to_json
from elastic_core.spec import JobSpec


class KeptRuns:
    """Without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._outcomes = {line["run"]: from_json(Outcome, line["outcome"]) for line in map(json.loads, lines)}

    def find(self, spec: JobSpec, variant: Variant, workers: int) -> Outcome | None:
        return self._outcomes.get(_key(spec, variant, workers))

    def add(self, spec: JobSpec, variant: Variant, workers: int, outcome: Outcome) -> None:
        self._outcomes[_key(spec, variant, workers)] = outcome
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"run": _key(spec, variant, workers), "outcome": to_json(outcome)}) + "\n")


def _key(spec: JobSpec, variant: Variant, workers: int) -> str:
    return f"{variant} {workers} {spec.model_dump_json()}"
