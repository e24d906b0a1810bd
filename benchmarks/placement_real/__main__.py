"""The click model under the plan that the platform chooses, beside all of it on one type: jobs on the real services.

    .venv/bin/python -m benchmarks.placement_real             # about 12 minutes on two free cores
    .venv/bin/python -m benchmarks.placement_real --quick     # fewer steps

PostgreSQL, Airflow, MLflow, agents and trainer processes are real, in a home of their own, under the default policy;
jobs come by `elastic jobs submit`, one after the other on an empty pool. Prices and times are those of
`examples/placement/paced-ctr.json`; the accelerator is one that is not here (`examples.paced_ctr` says what is made and
what is real).

- Three jobs of `placement: exact`, `prefer: cost`: one may use all types, two are kept to one type each. Predicted
  (without filling and draining the pipeline), the slots and their price are what the platform shows of the job;
  measured is the median over the steps that its ledger holds, the first of each start left out.
- With the throughputs that were measured, the range of the accelerator's price (the processor's stays) in which the
  slots of the first make a sample cheaper than those of the other two.
- On the way: a job placed on both types makes room for another that takes processors, and then one of its processes is
  killed. Losses of all its steps are compared with those of a job in one process that nobody disturbs, both in double
  precision (`task.py` says why), and both without late updates.
- A table that is larger than the accelerator's memory is refused there.

Bars: predicted and measured within 20 %; more samples for the same money than on each type alone; losses to 1e-6, each
sample read once; the jobs' runs in Airflow succeed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.report import Report
from benchmarks.placement_real import real_jobs
from benchmarks.placement_real.price_range import Measured, price_range
from benchmarks.placement_real.real_services import Disturbed, RealServices
from tests.e2e.platform import Platform

MIXED = "mixed"
STEPS = {MIXED: 16, "processors": 4, "accelerators": 7}
QUICK_STEPS = {MIXED: 8, "processors": 3, "accelerators": 4}
DISTURBED_STEPS = 48
WITHIN, SAME_LOSS = 0.20, 1e-6
REGISTERED_SECONDS = 240.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--keep-home", action="store_true", help="leave the services' folder, to look into")
    arguments = parser.parse_args()
    report = Report("placement_real", quick=arguments.quick)
    steps = QUICK_STEPS if arguments.quick else STEPS
    home = Path(tempfile.mkdtemp(prefix="elastic-placement-"))
    platform = Platform(home, tasks="examples.*,benchmarks.placement_real.*")
    try:
        platform.up()
        services = RealServices(platform)
        cpu, accelerator = real_jobs.names()
        types = {MIXED: (), "processors": (cpu,), "accelerators": (accelerator,)}
        measured = [
            services.measure(real_jobs.spec(name, steps[name], types[name], size=real_jobs.SIZE)) for name in types
        ]
        disturbed = services.disturb(DISTURBED_STEPS)
        refused = services.refusal()
        states = services.airflow_states((*types, "rival", "disturbed", "undisturbed"), REGISTERED_SECONDS)
    finally:
        platform.elastic("down", check=False)
        if not arguments.keep_home:
            shutil.rmtree(home, ignore_errors=True)
    tell_speeds(report, measured)
    tell_disturbed(report, disturbed)
    report.table(f"A table of {real_jobs.LARGE_ROWS} rows on accelerators", ("what the job is told",), [(refused,)])
    failed = {name: state for name, state in states.items() if state != "success"}
    report.bar("runs in Airflow", want="success", got=failed or "success", ok=not failed)
    return report.finish()


def tell_speeds(report: Report, measured: Sequence[Measured]) -> None:
    mixed, *rivals = measured
    columns = (
        "job",
        "stages",
        "money / h",
        "predicted samples/s",
        "measured",
        "measured / predicted",
        "samples / money",
    )
    rows = [
        (one.name, one.stages, one.rate, one.predicted, one.throughput, one.ratio, one.samples_per_unit)
        for one in measured
    ]
    report.table(f"Batches of {real_jobs.BATCH}", columns, rows)
    report.figure("jobs", {row[0]: dict(zip(columns[1:], row[1:], strict=True)) for row in rows})
    low, high = price_range(mixed, rivals)
    prices = {kind.is_cpu: kind.price for kind in real_jobs.profile().types}
    listed = prices[False] / prices[True]
    report.table("The accelerator's price, in the processor's", ("mixing wins from", "to", "listed"),
                 [(low, high, listed)])  # fmt: skip
    report.figure("accelerator's price in processors' prices", {"low": low, "high": high, "listed": listed})
    for one in measured:
        ok = abs(one.ratio - 1) <= WITHIN
        report.bar(f"{one.name}: measured / predicted", want="0.8 to 1.2", got=round(one.ratio, 3), ok=ok)
    report.bar(
        "the plan holds slots of both types", want="yes", got=mixed.stages, ok=bool(mixed.cpus and mixed.accelerators)
    )
    for rival in rivals:
        ratio = mixed.samples_per_unit / rival.samples_per_unit
        report.bar(f"samples for the same money, beside {rival.name}", want="> 1", got=round(ratio, 2), ok=ratio > 1)


def tell_disturbed(report: Report, one: Disturbed) -> None:
    rows = [("stages, one after the other", " -> ".join(one.stages)), ("killed", one.killed),
            ("further attempts", one.attempts), ("steps taken, with those taken again", one.steps),
            ("losses beside the undisturbed job's, at worst", one.worst)]  # fmt: skip
    report.table("Resized and killed", ("", "seen"), rows)
    report.figure("disturbed", one)
    unproven = [read for read in one.reads if read.proven is False or read.problem]
    proven = sum(read.proven is True for read in one.reads)
    report.bar("resized, and a process killed", want=">= 1 each", got=f"{len(one.stages) - 1}, {one.attempts}",
               ok=len(one.stages) > 1 and one.attempts >= 1)  # fmt: skip
    report.bar("every sample of an epoch read exactly once", want=">= 1 epoch, no other", got=f"{proven} epochs",
               ok=proven >= 1 and not unproven)  # fmt: skip
    report.bar("losses, resized and killed", want=f"<= {SAME_LOSS:g}", got=one.worst, ok=one.worst <= SAME_LOSS)


if __name__ == "__main__":
    sys.exit(main())
