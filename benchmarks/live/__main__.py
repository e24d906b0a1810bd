"""Policies on the real services: the default one against its rivals, in mean completion time of 24 jobs on 16 slots.

    .venv/bin/python -m benchmarks.live --policy horizon --seed 0     # one run of about 12 minutes, kept
    .venv/bin/python -m benchmarks.live --policy horizon --seed 0 --every-end-unknown    # of the second workload
    .venv/bin/python -m benchmarks.live --share                       # kept runs into docs/results/live.runs.jsonl
    .venv/bin/python -m benchmarks.live --report                      # of all runs of both workloads, kept or shared
    .venv/bin/python -m benchmarks.live --quick                       # 6 jobs in minutes: completion and correctness

PostgreSQL, Airflow, MLflow and trainer processes are real; jobs are those of `examples.paced`: real processes, gradient
exchange, checkpoints and resizes on a tiny real model, each step padded to what a profile says that this type of slot
and this batch take (`elastic_core.sim.workloads.generated_jobs`). The ledger first imports the corpus of short real
trainings as its history (`elastic history import`). A run is kept under the fingerprint of its workload (`run_record`),
so that runs may be made one at a time and in any order; `--again` makes a kept one anew.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import checked_out
from benchmarks.common.report import Report
from benchmarks.corpus.history import corpus_runs
from benchmarks.live import live_forecasts, live_report, run_record
from benchmarks.live.contenders import CONTENDERS, Contender
from benchmarks.live.live_run import mean_completion, problems, run
from benchmarks.live.live_workload import LiveWorkload, every_end_unknown, full, quick
from elastic_core.protocol.history_runs import write_history
from tests.e2e.platform import Platform

MOST_SECONDS = 2400.0  # a run that takes longer has gone wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", choices=CONTENDERS, help="run this one now")
    parser.add_argument("--seed", type=int, default=0, help="of the jobs: initial weights and data order")
    parser.add_argument("--every-end-unknown", action="store_true", help="run the second workload (horizon, with and "
                        "without predictors)")  # fmt: skip
    parser.add_argument("--share", action="store_true", help="add the runs made here to docs/results/live.runs.jsonl")
    parser.add_argument("--report", action="store_true", help="judge the runs that are kept")
    parser.add_argument("--quick", action="store_true", help="6 jobs on 8 slots under horizon, and nothing else")
    parser.add_argument("--again", action="store_true", help="run although such a run is kept")
    parser.add_argument("--keep-home", action="store_true", help="leave the services' folder, to look into")
    chosen = parser.parse_args()
    if not (chosen.policy or chosen.report or chosen.share or chosen.quick):
        parser.error("say --policy NAME, --share, --report or --quick")
    if chosen.quick:
        return quick_run(chosen)
    loaded, unknown = full(), every_end_unknown()
    if chosen.policy:
        one_run(unknown if chosen.every_end_unknown else loaded, chosen.policy, chosen)
    if chosen.share:
        run_record.share(loaded.fingerprint(), unknown.fingerprint())
    if not chosen.report:
        return 0
    of_both = (run_record.runs(one.fingerprint()) for one in (loaded, unknown))
    return live_report.report(loaded, *of_both)


def one_run(loaded: LiveWorkload, label: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Run, and keep what came of it, unless that was done before."""
    path = run_record.place(label, chosen.seed, loaded.fingerprint())
    if path.exists() and not chosen.again:
        print(f"{path} is kept from before; --again runs it anew")
        before: dict[str, Any] = json.loads(path.read_text())
        return before
    commit = checked_out.commit()
    outcome = on_own_services(loaded, CONTENDERS[label], chosen.seed, keep_home=chosen.keep_home)
    run_record.keep(outcome, label, chosen.seed, loaded.fingerprint(), commit)
    print(f"{label}, seed {chosen.seed}: mean completion {mean_completion(outcome):.1f} s, kept as {path}")
    for line in outcome["problems"]:
        print(f"NOT RIGHT: {line}")
    return outcome


def on_own_services(loaded: LiveWorkload, contender: Contender, seed: int, *, keep_home: bool) -> dict[str, Any]:
    """Services of this run alone, in a folder of their own."""
    home = Path(tempfile.mkdtemp(prefix="elastic-live-"))
    platform = Platform(home, policy=contender.policy, **contender.settings)
    try:
        platform.up()
        imported = import_history(platform, home / "history.jsonl.gz")
        outcome = run(platform, loaded, contender.specs(loaded, seed), most_seconds=MOST_SECONDS)
        forecasts = live_forecasts.graded(platform, outcome["jobs"])
    finally:
        platform.elastic("down", check=False)
        if not keep_home:
            shutil.rmtree(home, ignore_errors=True)
    return outcome | {"history": imported, "forecasts": forecasts, "problems": problems(loaded, outcome)}


def import_history(platform: Platform, file: Path) -> str:
    """What the platform says of the imported corpus, which is written into the file first."""
    write_history(corpus_runs(), file)
    return platform.elastic("history", "import", str(file)).stdout.strip()


def quick_run(chosen: argparse.Namespace) -> int:
    loaded = quick()
    outcome = on_own_services(loaded, CONTENDERS["horizon"], chosen.seed, keep_home=chosen.keep_home)
    report = Report("live", quick=True)
    live_report.jobs_table(report, outcome)
    right: Mapping[str, Any] = {"want": "nothing wrong", "got": "; ".join(outcome["problems"]) or "nothing wrong"}
    report.bar("every job finished, read each sample once, was registered", **right, ok=not outcome["problems"])
    resizes = sum(job["resizes"] for job in outcome["jobs"])
    report.bar("jobs were resized", want=">= 1", got=resizes, ok=resizes >= 1)
    report.figure("outcome", outcome)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
