"""Broken variants of the platform's code, each of which must be caught: `python -m benchmarks.mutants [--quick]`.

Each mutant of `benchmarks/mutants/catalogue.py` is planted in a copy of the tree; then the simulated faults hunt it,
seed by seed, and where they do not find it the tests that it names. What the sound tree does not pass catches nothing:
the same seeds and tests are run on the copy without a mutant first. `--only NAME` runs one, `--resume` leaves out those
that are caught in this very tree already (benchmarks/out/mutants.jsonl); `--quick` takes one of each invariant.

Bars: each mutant is caught; the sound tree passes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common.report import OUT, Report
from benchmarks.mutants.catalogue import MUTANTS, by_name
from benchmarks.mutants.mutant import Mutant
from benchmarks.simulated_faults.__main__ import tree

ROOT = Path(__file__).parents[2]
KEPT = OUT / "mutants.jsonl"
LINKED = ("benchmarks", "tests", "examples", "plugins", "dags", "docs", "pyproject.toml", "requirements.lock")
SEEDS, QUICK_SEEDS = 50, 10
LIMIT_SECONDS = 3600.0


class Tree:
    """A copy of the package, with all else linked to the real one."""

    def __init__(self, folder: Path, seeds: int) -> None:
        self.folder, self._seeds = folder, seeds
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "elastic_core", folder / "elastic_core", ignore=skipped)
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)
        self._passed: dict[str, bool] = {}  # test -> whether the sound tree passes it

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        sound = {file: (self.folder / file).read_text() for file, _, _ in mutant.edits}
        for file, old, new in mutant.edits:
            text = (self.folder / file).read_text()
            if text.count(old) != 1:
                raise SystemExit(
                    f"mutant {mutant.name!r}: {file} has {old!r} {text.count(old)} times, not once; the code has "
                    "changed, and the catalogue must follow"
                )
            self._write(file, text.replace(old, new))
        try:
            yield
        finally:
            for file, text in sound.items():
                self._write(file, text)

    def _write(self, file: str, text: str) -> None:
        path = self.folder / file
        path.write_text(text)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()  # it may be of the same second and size

    def hunted(self) -> str | None:
        """What the simulated faults find, in words."""
        done = self._run("-m", "benchmarks.simulated_faults", "--until-broken", "--seeds", str(self._seeds))
        if done.returncode == 0:
            return None
        lines = done.stdout.splitlines()
        broken = [index for index, line in enumerate(lines) if line.startswith("BROKEN")]
        if broken:
            return " ".join(lines[broken[0] : broken[0] + 2])
        return f"simulated faults end with: {done.stderr.strip().splitlines()[-1]}"

    def passes(self, test: str) -> bool:
        return self._run("-m", "pytest", "-x", "-q", "-p", "no:randomly", test).returncode == 0

    def passes_when_sound(self, test: str) -> bool:
        if test not in self._passed:
            self._passed[test] = self.passes(test)
        return self._passed[test]

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": f"{self.folder}:{self.folder / 'plugins'}"}
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, check=False,
            timeout=LIMIT_SECONDS,
        )  # fmt: skip


def caught_by(tree: Tree, mutant: Mutant) -> str | None:
    """What catches it, in words; None where it survives."""
    tests = [test for test in mutant.tests if tree.passes_when_sound(test)]
    with tree.planted(mutant):
        if mutant.simulated and (found := tree.hunted()) is not None:
            return found
        return next((f"fails {test}" for test in tests if not tree.passes(test)), None)


def main() -> int:
    given = _arguments()
    report = Report("mutants", quick=given.quick)
    code = tree()
    chosen = _chosen(given)
    known = _known(code) if given.resume else {}
    with tempfile.TemporaryDirectory(prefix="elastic-mutants-") as folder:
        copy = Tree(Path(folder), QUICK_SEEDS if given.quick else SEEDS)
        sound = known.get("") or ("passes" if copy.hunted() is None else "is broken itself")
        _keep(code, "", sound)
        rows: list[tuple[str, int, str]] = []
        for mutant in chosen:
            found = known.get(mutant.name) or caught_by(copy, mutant)
            _keep(code, mutant.name, found)
            rows.append((mutant.name, mutant.invariant, found or "SURVIVES"))
            print(f"{mutant.invariant} {mutant.name}: {found or 'SURVIVES'}", flush=True)
    report.table("Mutants", ("what is broken", "invariant", "caught by"), rows)
    survivors = [name for name, _, found in rows if found == "SURVIVES"]
    by_faults = sum("BROKEN" in found or "simulated faults" in found for _, _, found in rows)
    report.figure("caught_by_simulated_faults", by_faults)
    report.bar("mutants that survive", want="none", got=survivors or "none", ok=not survivors)
    report.bar("the sound tree, hunted in the same way", want="passes", got=sound, ok=sound == "passes")
    return report.finish()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one mutant of each invariant, fewer seeds")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this one; may be repeated")
    parser.add_argument("--resume", action="store_true", help="leave out what is known of this very tree")
    return parser.parse_args()


def _chosen(given: argparse.Namespace) -> list[Mutant]:
    if given.only:
        return [by_name(name) for name in given.only]
    if not given.quick:
        return list(MUTANTS)
    of_invariant = {mutant.invariant: mutant for mutant in reversed(MUTANTS) if mutant.simulated}
    return [of_invariant[number] for number in sorted(of_invariant)]


def _keep(code: str, name: str, found: str | None) -> None:
    OUT.mkdir(exist_ok=True)
    with KEPT.open("a") as kept:
        kept.write(json.dumps({"tree": code, "mutant": name, "caught_by": found}) + "\n")


def _known(code: str) -> dict[str, str]:
    """Of this very tree: what caught whom; under "" how the sound tree did."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []
    return {line["mutant"]: line["caught_by"] for line in lines if line["tree"] == code and line["caught_by"]}


if __name__ == "__main__":
    sys.exit(main())
