"""Whether the simulator is to be believed: published simulations repeated, and compared with their published results.

1. Pollux's artefact (OSDI 2021): four traces of 160 jobs on 16 nodes of 4 T4, `tiresias` and `optimus`, against the
   authors' completion time of every job. `optimus` gets the true step times and remaining steps, as theirs did.

Needs the published traces in `ELASTIC_DATA`. Rounds of 60 s, no measurement noise, as in the artefacts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from scipy.stats import spearmanr

from benchmarks.report import Report
from elastic_core.domain import Limits, ProfilePoint
from elastic_core.policy.contract import Policy
from elastic_core.policy.optimus import Optimus
from elastic_core.policy.tiresias import Tiresias
from elastic_core.sim import traces
from elastic_core.sim.engine import Options, simulate
from elastic_core.sim.oracle import TrueOptimus
from elastic_core.sim.result import Result
from elastic_core.sim.workload import Workload

WANT_MEAN = 0.10  # relative
WANT_RANK = 0.90
AS_PUBLISHED = Options(round_seconds=60, noise=0.0, timeline=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two of the four workloads")
    quick = parser.parse_args().quick
    report = Report("believed", quick=quick)
    pollux(report, (1, 3) if quick else (1, 2, 3, 4))
    return report.finish()


def pollux(report: Report, numbers: tuple[int, ...]) -> None:
    data = traces.data_folder()
    rows = []
    for name in ("tiresias", "optimus"):
        published = published_times(data, name)
        for number in numbers:
            path = data / "pollux-osdi21" / "workloads" / "workloads" / f"workload-{number}.csv"
            workload = traces.pollux_workload(data, path)
            theirs = published[path.stem]
            policy = rival(name, workload)
            result = simulate(workload, traces.SIXTEEN_T4_NODES, policy, AS_PUBLISHED, fit=no_model)
            ours = completion_times(result)
            mean, rank = fmean(ours.values()) / fmean(theirs.values()) - 1.0, rank_correlation(ours, theirs)
            report.figure(f"{name}_{path.stem}_seconds", {job: (theirs[job], ours[job]) for job in theirs})
            rows.append((name, path.stem, fmean(theirs.values()), fmean(ours.values()), f"{100 * mean:+.1f} %", rank))
            check(report, f"{name}, {path.stem}: mean completion time", mean)
            report.bar(
                f"{name}, {path.stem}: rank correlation of jobs",
                want=f">= {WANT_RANK}",
                got=round(rank, 4),
                ok=rank >= WANT_RANK,
            )
    columns = ("policy", "workload", "published mean s", "ours", "difference", "rank correlation")
    report.table("Pollux's published results", columns, rows)


def rival(name: str, workload: Workload) -> Policy:
    return Optimus(TrueOptimus(workload)) if name == "optimus" else Tiresias()


def no_model(points: tuple[ProfilePoint, ...], limits: Limits) -> None:
    """Neither of the two asks for one."""


def published_times(data: Path, name: str) -> Mapping[str, Mapping[str, float]]:
    """The authors' completion seconds by workload and job."""
    path = data / "pollux-osdi21" / "published-results" / f"{name}-1.0" / "summary.json"
    found: Mapping[str, Mapping[str, float]] = json.loads(path.read_text())["jcts"]
    return found


def completion_times(result: Result) -> dict[str, float]:
    return {job.job_id: job.completion_seconds for job in result.jobs if job.completion_seconds is not None}


def rank_correlation(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """Spearman's, over the jobs of the published run; a job that ours did not complete stops the benchmark."""
    return float(spearmanr([ours[job] for job in theirs], [theirs[job] for job in theirs]).statistic)


def check(report: Report, bar: str, difference: float) -> None:
    report.bar(
        bar,
        want=f"within {WANT_MEAN:.0%} of the published one",
        got=f"{difference:+.1%}",
        ok=abs(difference) <= WANT_MEAN,
    )


if __name__ == "__main__":
    sys.exit(main())
