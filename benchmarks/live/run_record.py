"""The live benchmark's runs, kept one by one: a run is minutes of a whole machine, and all of them are hours.

A run made here lies under benchmarks/out/live/FINGERPRINT; `share` adds all of them to docs/results/live.runs.jsonl, a
line a run, where other checkouts find them, each with the commit that it is of: a report over runs of several commits
says so. A new run takes the place of an older one of the same contender and seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.kept_runs import RESULTS
from benchmarks.common.report import OUT

Run = dict[str, Any]
Runs = Mapping[tuple[str, int], Run]  # by contender and seed
OF_A_JOB = (
    "name", "state", "requested_at", "submitted_at", "asked_at", "granted_at", "finished_at", "completion_seconds",
    "samples", "steps", "resizes", "batch_changes", "restarts",
)  # fmt: skip


def keep(outcome: Run, contender: str, seed: int, fingerprint: str, commit: str, out: Path = OUT) -> None:
    of = {"contender": contender, "seed": seed, "fingerprint": fingerprint, "commit": commit}
    path = place(contender, seed, fingerprint, out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(outcome | of, indent=1))


def place(contender: str, seed: int, fingerprint: str, out: Path = OUT) -> Path:
    return out / "live" / fingerprint / f"{contender}-{seed}.json"


def runs(fingerprint: str, out: Path = OUT, results: Path = RESULTS) -> Runs:
    """Of this workload, made here or shared: of each contender and seed the last. But for those that were kept before
    runs told of which commit they are."""
    made = [json.loads(path.read_text()) for path in sorted((out / "live" / fingerprint).glob("*.json"))]
    for one in made:
        if "commit" not in one:
            print(f"passed over: {one['contender']}, seed {one['seed']} does not say of which commit it is; --again")
    told = [one for one in made if "commit" in one]
    both = sorted([*_shared(results), *told], key=lambda one: float(one["began"]))
    return {(one["contender"], one["seed"]): one for one in both if one["fingerprint"] == fingerprint}


def share(*fingerprints: str, out: Path = OUT, results: Path = RESULTS) -> None:
    """Runs of other workloads are left out: they are compared with nothing any more."""
    of_each = [sorted(runs(fingerprint, out, results).items()) for fingerprint in fingerprints]
    lines = [json.dumps(_what_is_judged(one)) + "\n" for of_one in of_each for _, one in of_one]
    (results / "live.runs.jsonl").write_text("".join(lines))


def _what_is_judged(one: Run) -> Run:
    """Without the segments, reads and evaluations, of which `problems` tells what was wrong."""
    return {**one, "jobs": [{name: job.get(name) for name in OF_A_JOB} for job in one["jobs"]]}


def _shared(results: Path) -> list[Run]:
    path = results / "live.runs.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
