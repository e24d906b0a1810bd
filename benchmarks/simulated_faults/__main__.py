"""The control plane under faults drawn from a seed: `python -m benchmarks.simulated_faults [--quick] [--seeds N]`.

Simulated: processes, network, launcher, trainers, store, Airflow, MLflow and clocks. Real: everything that decides and
writes, on a PostgreSQL. After each event that changed something the invariants of docs/design/invariants.md are checked
from the ledger's history and against what is true of the processes. A seed that breaks one prints the command that
replays it: `--seed N` runs that one and tells what went wrong in it. 1,000 seeds by default, 50 with `--quick`.
Outcomes are kept in benchmarks/out/simulated_faults.jsonl: with `--resume` seeds that this very tree has passed are not
run again. `--keep` adds what this tree has run to docs/results/simulated_faults.seeds.jsonl (`seed_record`);
`--go-on` begins after the last seed that is in it, `--again` runs those of it that broke something when they were last
run. `--until-broken` stops at the first violation. `--workers`: seeds at once, each in a process of its own.

Bars: no violation; in each seed at least 100 changes, 5 faults and 3 jobs; a process ended at each crash point of the
control plane; with `--quick` at most 60 s.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common import checked_out
from benchmarks.common.report import OUT, Report
from benchmarks.simulated_faults import seed_record
from benchmarks.simulated_faults.seeds import be_silent, outcomes
from benchmarks.simulated_faults.users import FEWEST_CHANGES
from benchmarks.simulated_faults.world import Outcome, run
from elastic_core.crashing import CONTROL_POINTS
from tests.conftest import TestServer

ROOT = Path(__file__).parents[2]
KEPT = OUT / "simulated_faults.jsonl"
SEEDS, QUICK_SEEDS, QUICK_SECONDS = 1000, 50, 60.0
WORKERS = 2
COUNTED = ("faults", "points", "passed", "wishes")  # of an outcome
FEWEST_FAULTS, FEWEST_JOBS = 5, 3


def main() -> int:
    given = _arguments()
    if given.keep:
        return _keep()
    record = seed_record.runs()
    if given.go_on:
        given.first = seed_record.next_seed(record)
    be_silent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # the database ends with us
    with _databases(given.workers if given.seed is None else 1) as urls:
        if given.seed is not None:
            return _replay(given.seed, urls[0])
        count = QUICK_SEEDS if given.quick else given.seeds
        first = range(given.first, given.first + count)
        return _run(given, sorted(seed_record.broken(record)) if given.again else first, urls)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="replay this one, and say what happened")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many (default {SEEDS})")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds, and how long they take is judged")
    parser.add_argument("--resume", action="store_true", help="leave out what this very tree has passed")
    parser.add_argument("--go-on", action="store_true", help="begin after the last seed that was kept")
    parser.add_argument("--again", action="store_true", help="those on record that broke something when last run")
    parser.add_argument("--keep", action="store_true", help="run nothing; keep which seeds this very tree has run")
    parser.add_argument("--until-broken", action="store_true", help="stop at the first violation")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"seeds at once (default {WORKERS})")
    return parser.parse_args()


@contextmanager
def _databases(count: int) -> Iterator[list[str]]:
    server = TestServer(TestServer.new_folder())
    try:
        yield [server.create_ledger(f"simulated_{n}").render_as_string(hide_password=False) for n in range(count)]
    finally:
        server.close()


def _replay(seed: int, url: str) -> int:
    outcome = run(seed, url)
    for at, what in outcome.log:
        print(f"{at:9.2f} s  {what}")
    for violation in outcome.violations:
        print(f"VIOLATION {violation}")
    print(f"seed {seed}: {summary(outcome)}")
    return 1 if outcome.violations else 0


def summary(outcome: Outcome) -> str:
    return (
        f"{outcome.policy}, {outcome.jobs} jobs, {outcome.groups} process groups, {outcome.changes} changes, "
        f"{outcome.decisions} decisions, {sum(outcome.faults.values())} faults, {len(outcome.violations)} violations"
    )


def replay_command(seed: int) -> str:
    return f"python -m benchmarks.simulated_faults --seed {seed}"


def tree() -> str:
    """A digest of the code that the outcomes are of."""
    digest = hashlib.sha256()
    for folder in ("elastic_core", "benchmarks/simulated_faults", "benchmarks/common"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".sql"):
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _run(given: argparse.Namespace, seeds: Sequence[int], urls: Sequence[str]) -> int:
    report = Report("simulated_faults", quick=given.quick)
    code, started = tree(), time.monotonic()
    known = _known(code) if given.resume else {}
    run_or_known = [known[seed] for seed in seeds if seed in known]
    OUT.mkdir(exist_ok=True)
    with Path("/dev/null" if given.until_broken else KEPT).open("a") as kept:
        for outcome in outcomes([seed for seed in seeds if seed not in known], urls):
            kept.write(json.dumps({"tree": code, **vars(outcome), "log": []}) + "\n")
            kept.flush()
            run_or_known.append(outcome)
            if outcome.violations:
                print(f"BROKEN {outcome.violations[0]}\n  replay it: {replay_command(outcome.seed)}", flush=True)
                if given.until_broken:
                    return 1
    if given.until_broken:
        return 0
    return _judge(report, run_or_known, time.monotonic() - started)


def _keep() -> int:
    code = tree()
    kept = {seed for run in seed_record.runs() if run.tree == code for seed in run.numbers()}
    ran = [outcome for seed, outcome in _known(code, passed=False).items() if seed not in kept]
    if ran:
        seed_record.add(seed_record.of_outcomes(ran, code, checked_out.commit()))
    seeds, trees, once, still = seed_record.total(seed_record.runs())
    print(
        f"{len(ran)} seeds of this tree were added; in all {seeds} seeds on {trees} trees, of which {once} broke "
        f"something, and {still} did so when they were last run"
    )
    return 0


def _known(code: str, *, passed: bool = True) -> dict[int, Outcome]:
    """Seeds that this very code has passed; or all that it has run."""
    known = {}
    for line in KEPT.read_text().splitlines() if KEPT.exists() else ():
        kept = json.loads(line)
        if kept.pop("tree") == code and not (passed and kept["violations"]):
            counts = {name: Counter(kept.pop(name)) for name in COUNTED}
            known[kept["seed"]] = Outcome(**kept, **counts)
    return known


def _sum(outcomes: list[Outcome], name: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts += getattr(outcome, name)
    return counts


def _judge(report: Report, outcomes: list[Outcome], seconds: float) -> int:
    faults, points, passed, wishes = (_sum(outcomes, name) for name in COUNTED)
    broken = [outcome.seed for outcome in outcomes if outcome.violations]
    report.table("Faults", ("kind", "times"), sorted(faults.items()))
    report.table("Wishes", ("kind", "times"), sorted(wishes.items()))
    report.table(
        "Crash points", ("point", "come to", "processes ended"), [(p, passed[p], points[p]) for p in CONTROL_POINTS]
    )
    totals = {
        name: sum(getattr(o, name) for o in outcomes) for name in ("jobs", "groups", "changes", "checks", "decisions")
    }
    report.table("All seeds together", tuple(totals), [tuple(totals.values())])
    report.figure("seeds", len(outcomes))
    report.figure("simulated_seconds", [outcome.ended_at for outcome in outcomes])
    report.figure("agreed_after_seconds", [outcome.agreed_after for outcome in outcomes])
    report.figure("replay", [replay_command(seed) for seed in broken])
    report.bar("seeds that break an invariant", want="0", got=len(broken), ok=not broken)
    for name, fewest, least in (
        ("changes", FEWEST_CHANGES, min(o.changes for o in outcomes)),
        ("faults", FEWEST_FAULTS, min(sum(o.faults.values()) for o in outcomes)),
        ("jobs", FEWEST_JOBS, min(o.jobs for o in outcomes)),
    ):
        report.bar(f"fewest {name} of a seed", want=f">= {fewest}", got=least, ok=least >= fewest)
    never = [point for point in CONTROL_POINTS if not points[point]]
    report.bar("crash points at which no process ended", want="none", got=never or "none", ok=not never)
    if report.quick:
        report.bar("seconds", want=f"<= {QUICK_SECONDS:.0f}", got=round(seconds, 1), ok=seconds <= QUICK_SECONDS)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
