"""Real chaos: the whole platform with jobs at work, while every kind of its processes is killed or stopped.

    .venv/bin/python -m benchmarks.chaos --minutes 30               # 72 faults
    .venv/bin/python -m benchmarks.chaos --minutes 30 --faults 3    # 3 killed workers: the share of effective time
    .venv/bin/python -m benchmarks.chaos --quick                    # 4 minutes of faults, all checks

PostgreSQL, Airflow, MLflow and trainers are real, on a home of their own, under the default policy and settings; as a
job ends the next is submitted. Which fault comes when is drawn from a seed (`fault_plan`), what it hits from what is
there (`fault_kinds`): the same seed gives the same plan, not the same run. Afterwards nobody does anything until all
jobs have ended. What happens is written to benchmarks/out/chaos.log.jsonl as it happens.

Recovery is counted from a kill to the end of the job's next step. Effective is the time in steps of what was committed,
of the time from a job's first slots to its end: starts, boundaries, resizes, lost steps and waiting are not.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from math import nan
from statistics import median, quantiles

from benchmarks.chaos.chaos_run import Chosen, Outcome, chaos
from benchmarks.chaos.event_log import EventLog
from benchmarks.chaos.fault_plan import KILL_WORKER
from benchmarks.common.report import OUT, Report

FAULTS_A_MINUTE = 2.4
FEW_FAULTS = 3  # up to here it is the effective share that is asked about, else the number of faults
MINUTES, QUICK_MINUTES = 30.0, 4.0
LANES = 6
JOB_SECONDS, QUICK_JOB_SECONDS = 480.0, 180.0  # on one slot; about a third of it on three
FEWEST_FAULTS, FEWEST_KINDS, FEWEST_WORKERS = 60, 12, 20
MEDIAN_SECONDS, P95_SECONDS = 15.0, 30.0
EFFECTIVE = 0.9


def main() -> int:
    given = _arguments()
    minutes = given.minutes or (QUICK_MINUTES if given.quick else MINUTES)
    faults = round(FAULTS_A_MINUTE * minutes) if given.faults is None else given.faults
    chosen = Chosen(
        minutes=minutes, seed=given.seed, faults=faults, lanes=given.jobs,
        job_seconds=QUICK_JOB_SECONDS if minutes < MINUTES / 2 else JOB_SECONDS,
    )  # fmt: skip
    name = "chaos" if faults > FEW_FAULTS else "chaos_calm"
    report, log = Report(name, quick=given.quick), EventLog(OUT / f"{name}.log.jsonl")
    try:
        outcome = chaos(chosen, log, keep_home=given.keep_home)
    finally:
        log.close()
    judge(report, chosen, outcome, full=minutes >= MINUTES)
    return report.finish()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help=f"of faults (default {MINUTES:g}, quick {QUICK_MINUTES:g})")
    parser.add_argument("--seed", type=int, default=0, help="of the faults (default 0)")
    parser.add_argument("--faults", type=int, help=f"how many (default {FAULTS_A_MINUTE:g} a minute)")
    parser.add_argument("--jobs", type=int, default=LANES, help=f"at once (default {LANES})")
    parser.add_argument("--quick", action="store_true", help="few minutes; how many faults there are is not judged")
    parser.add_argument("--keep-home", action="store_true", help="leave the services' folder, to look into")
    return parser.parse_args()


def judge(report: Report, chosen: Chosen, outcome: Outcome, *, full: bool) -> None:
    """`full`: as many faults are wanted as in half an hour."""
    kinds = Counter(fault.kind for fault in outcome.faults)
    seconds = list(outcome.recoveries.values())
    report.table("Faults", ("kind", "count"), sorted(kinds.items()))
    columns = ("name", "state", "airflow", "samples", "segments", "attempts_lost")
    report.table("Jobs", columns, [[job[column] for column in columns] for job in outcome.jobs])
    _figures(report, chosen, outcome)
    if full and chosen.faults > FEW_FAULTS:
        report.bar("faults", want=f">= {FEWEST_FAULTS}", got=kinds.total(), ok=kinds.total() >= FEWEST_FAULTS)
        report.bar("kinds of faults", want=f">= {FEWEST_KINDS}", got=len(kinds), ok=len(kinds) >= FEWEST_KINDS)
        workers = kinds[KILL_WORKER]
        report.bar("workers killed", want=f">= {FEWEST_WORKERS}", got=workers, ok=workers >= FEWEST_WORKERS)
    wrong = [line for job in outcome.jobs for line in job["wrong"]]
    broken = [*outcome.violations, *wrong]
    ended = sum(job["ended_well"] for job in outcome.jobs)
    report.bar("samples lost or doubled, promises broken", want="0", got=_counted(broken), ok=not broken)
    report.bar("slots held twice", want="0", got=_counted(sorted(outcome.held_twice)), ok=not outcome.held_twice)
    report.bar("processes left", want="0", got=_counted(outcome.orphans), ok=not outcome.orphans)
    all_of = len(outcome.jobs)
    report.bar("jobs finished", want=f"{all_of} of {all_of}", got=ended, ok=0 < ended == all_of)
    if outcome.hung or outcome.not_found:
        slowest = max(outcome.hung.values(), default=0.0)
        report.bar(
            "hang found, slowest", want=f"<= {outcome.hang_bound:g} s",
            got=f"{len(outcome.not_found)} never" if outcome.not_found else round(slowest, 1),
            ok=not outcome.not_found and slowest <= outcome.hang_bound,
        )  # fmt: skip
    if seconds:
        report.bar("recovery, median", want=f"<= {MEDIAN_SECONDS:g} s", got=round(median(seconds), 1),
                   ok=median(seconds) <= MEDIAN_SECONDS)  # fmt: skip
        report.bar("recovery, 95th percentile", want=f"<= {P95_SECONDS:g} s", got=round(_p95(seconds), 1),
                   ok=_p95(seconds) <= P95_SECONDS)  # fmt: skip
    if chosen.faults <= FEW_FAULTS:
        share = _effective(outcome)
        report.bar("effective training time", want=f">= {EFFECTIVE:.0%}", got=f"{share:.1%}", ok=share >= EFFECTIVE)


def _figures(report: Report, chosen: Chosen, outcome: Outcome) -> None:
    report.figure("chosen", chosen)
    report.figure("faults", outcome.faults)
    report.figure("planned_without_a_victim", outcome.missed)
    report.figure("jobs", outcome.jobs)
    report.figure("violations", outcome.violations)
    report.figure("looks_at_the_ledger", outcome.looks)
    report.figure("recovery_seconds", outcome.recoveries)
    report.figure("seconds_until_slots_again", outcome.waits)
    report.figure("kills_without_a_recovery", outcome.needless)
    report.figure("hang_found_seconds", outcome.hung)
    report.figure("effective", outcome.effective)
    rows = [
        ("looks at the ledger", outcome.looks),
        ("faults that found nothing to hit", len(outcome.missed)),
        ("seconds of peace until all jobs had ended", outcome.peace_seconds),
        ("effective training time", _effective(outcome)),
        ("killed workers whose job was done", len(outcome.needless)),
    ]
    report.table("Run", ("what", "figure"), rows)
    if outcome.recoveries:
        rest = [outcome.recoveries[pid] - wait for pid, wait in outcome.waits.items() if pid in outcome.recoveries]
        report.table(
            "Recovery from a killed worker, seconds", ("what", "count", "least", "median", "p95", "most"),
            [_spread("until the job's next step", outcome.recoveries.values()),
             _spread("until it had slots again", outcome.waits.values()), _spread("from then on", rest)],
        )  # fmt: skip


def _effective(outcome: Outcome) -> float:
    wall = sum(job.wall for job in outcome.effective)
    return sum(job.training for job in outcome.effective) / wall if wall else 0.0


def _spread(what: str, raw: Iterable[float]) -> tuple[str, int, float, float, float, float]:
    ordered = sorted(raw)
    if not ordered:
        return what, 0, nan, nan, nan, nan
    return what, len(ordered), ordered[0], median(ordered), _p95(ordered), ordered[-1]


def _counted(lines: list[str]) -> str:
    return "0" if not lines else f"{len(lines)}: {lines[0]}"


def _p95(raw: list[float]) -> float:
    return quantiles(raw, n=20, method="inclusive")[-1] if len(raw) > 1 else raw[0]


if __name__ == "__main__":
    sys.exit(main())
