"""Which seeds have passed, over many days and commits: docs/results/simulated_faults.seeds.jsonl, a line a run.

Each line names the commit and the digest of the code that its seeds ran on (`__main__.tree`); lines are added, never
changed. Seeds add up over lines, and the sum says over how many trees: ten thousand seeds on one tree are something
else than on twenty. `--go-on` begins after the highest seed of any line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.simulated_faults.world import Outcome

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "results" / "simulated_faults.seeds.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """Seeds that one run passed or broke. `histories`: a digest of all of their histories, in order."""

    date: str
    commit: str
    tree: str
    seeds: tuple[tuple[int, int], ...]  # first and last of each stretch
    broken: tuple[int, ...]
    changes: int
    faults: int
    histories: str

    def numbers(self) -> set[int]:
        return {seed for first, last in self.seeds for seed in range(first, last + 1)}


def stretches(seeds: Sequence[int]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for seed in sorted(set(seeds)):
        if found and found[-1][1] == seed - 1:
            found[-1] = (found[-1][0], seed)
        else:
            found.append((seed, seed))
    return tuple(found)


def of_outcomes(outcomes: Sequence[Outcome], tree: str, commit: str) -> SeedRun:
    ordered = sorted(outcomes, key=lambda outcome: outcome.seed)
    histories = hashlib.sha256("\n".join(f"{o.seed} {o.history}" for o in ordered).encode()).hexdigest()[:16]
    return SeedRun(
        date=datetime.now(UTC).date().isoformat(), commit=commit, tree=tree, seeds=stretches([o.seed for o in ordered]),
        broken=tuple(o.seed for o in ordered if o.violations), changes=sum(o.changes for o in ordered),
        faults=sum(sum(o.faults.values()) for o in ordered), histories=histories,
    )  # fmt: skip


def add(run: SeedRun, record: Path = RECORD) -> None:
    with record.open("a") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def runs(record: Path = RECORD) -> list[SeedRun]:
    lines = record.read_text().splitlines() if record.exists() else []
    return [
        SeedRun(**{**line, "seeds": tuple(map(tuple, line["seeds"])), "broken": tuple(line["broken"])})
        for line in map(json.loads, lines)
    ]


def next_seed(known: Sequence[SeedRun]) -> int:
    return max((last + 1 for run in known for _, last in run.seeds), default=0)


def broken(known: Sequence[SeedRun]) -> set[int]:
    """Seeds that broke something when they were last run."""
    found: set[int] = set()
    for run in known:
        found = found - run.numbers() | set(run.broken)
    return found


def total(known: Sequence[SeedRun]) -> tuple[int, int, int, int]:
    """Different seeds of all runs, the trees they ran on, how many broke something where they ran, and how many did so
    the last time."""
    seeds = set().union(*(run.numbers() for run in known))
    once = set().union(*(run.broken for run in known))
    return len(seeds), len({run.tree for run in known}), len(once), len(broken(known))
