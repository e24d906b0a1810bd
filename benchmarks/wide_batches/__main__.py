"""Is a wide batch range safe? Final held-out metrics of jobs whose batch the platform changes within 16 times the base
batch, beside the spread over seeds at the base batch.

Every task of `examples`, under `sqrt` and `linear` with work in samples and `adascale` with work in progress, three
ways: undisturbed at the base batch; as the product grows it, through restarts and changes of batch at random, with the
job's own reports of its gradient noise; and with any batch of the range, noise measured or not, which is shown and not
judged. `seeds_spread` says how they are judged.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.common.report import Report
from benchmarks.wide_batches.elastic_run import Outcome, Variant, spec_of, train
from benchmarks.wide_batches.kept_runs import KeptRuns
from benchmarks.wide_batches.seeds_spread import SPREAD, SeedsSpread
from benchmarks.wide_batches.subjects import RANGE, RULES, SUBJECTS, Rule, Subject

Cell = tuple[str, str, Variant]  # task, rule, and how; at the base batch all rules are one
Runs = Mapping[Cell, Sequence[Outcome]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the tabular task alone, without the unbounded range")
    parser.add_argument("--tasks", nargs="+", choices=[subject.name for subject in SUBJECTS], help="all if not given")
    parser.add_argument("--seeds", type=int, default=3, help="of each cell")
    parser.add_argument("--base-seeds", type=int, default=6, help="of each task at the base batch, at least 3")
    parser.add_argument("--workers", type=int, default=1, choices=(1, 2), help="most workers of a segment")
    parser.add_argument("--runs", type=Path, help="JSON lines: runs that it holds are passed over, others added")
    args = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("wide_batches", quick=args.quick)
    names = ["tabular"] if args.quick else args.tasks or [subject.name for subject in SUBJECTS]
    subjects = [subject for subject in SUBJECTS if subject.name in names]
    kept = KeptRuns(args.runs)
    runs: dict[Cell, list[Outcome]] = defaultdict(list)
    for subject, rule, variant, seed in trainings(subjects, args.seeds, args.base_seeds, wide=not args.quick):
        spec = spec_of(subject, rule, seed)
        outcome = kept.find(spec, variant, args.workers)
        if outcome is None:
            with tempfile.TemporaryDirectory() as folder:
                outcome = train(spec, variant, Path(folder), workers=args.workers)
            kept.add(spec, variant, args.workers, outcome)
        runs[subject.name, "" if variant == Variant.BASE else str(rule), variant].append(outcome)
        print(
            f"{subject.name}, {rule}, {variant}, seed {seed}: {outcome.metric:.4f} after {outcome.steps} steps, "
            f"batches {[segment.batch for segment in outcome.segments]}, {outcome.cpu_seconds:.1f} CPU seconds",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    judge(report, runs)
    return report.finish()


def trainings(
    subjects: Sequence[Subject], seeds: int, base_seeds: int, *, wide: bool
) -> Iterator[tuple[Subject, Rule, Variant, int]]:
    """What is judged comes first, one seed of everything after the other."""
    for seed in range(max(seeds, base_seeds)):
        for subject in subjects:
            if seed < base_seeds:
                yield subject, RULES[0], Variant.BASE, seed
            if seed < seeds:
                yield from ((subject, rule, Variant.GROWN, seed) for rule in RULES)
    if wide:
        yield from (
            (subject, rule, Variant.WIDE, seed) for seed in range(seeds) for subject in subjects for rule in RULES
        )


def judge(report: Report, runs: Runs) -> None:
    """Tables and bars of the runs that there are; only those as the product grows them have a bar."""
    rows = []
    for (name, rule, variant), outcomes in sorted(runs.items()):
        undisturbed = runs[name, "", Variant.BASE]
        spread = SeedsSpread.of([run.metric for run in undisturbed], undisturbed[0].mode)
        metrics = [run.metric for run in outcomes]
        report.figure(f"{name}, {rule or 'any rule'}, {variant}", [asdict(run) for run in outcomes])
        rows.append((
            f"{name}, {rule or 'any rule'}, {variant}", len(metrics), fmean(metrics), spread.worst(metrics),
            spread.limit, max(run.largest_batch for run in outcomes), fmean(run.mean_batch for run in outcomes),
            round(fmean(run.steps for run in outcomes)),
        ))  # fmt: skip
        if variant == Variant.GROWN:
            report.bar(
                f"{name}, {rule}: mean of {len(metrics)} seeds, batch as the product grows it",
                want=f"{'<=' if spread.mode == 'min' else '>='} {spread.limit:.4g} (base {spread.mean:.4g}, "
                f"{SPREAD:g} standard deviations of {spread.deviation:.2g})",
                got=f"{fmean(metrics):.4g}", ok=spread.holds(metrics),
            )  # fmt: skip
    columns = ("task, rule, batch", "seeds", "mean", "worst", "limit", "largest batch", "mean batch", "steps")
    seconds = sum(run.cpu_seconds for outcomes in runs.values() for run in outcomes)
    title = f"Final held-out metric, range of {RANGE} times the base batch; {seconds:.0f} CPU seconds of training"
    report.table(title, columns, rows)
    judge_growth(report, runs)


def judge_growth(report: Report, runs: Runs) -> None:
    """A study of batches that never grew would show nothing."""
    grown = [run for (_, _, variant), outcomes in runs.items() if variant == Variant.GROWN for run in outcomes]
    changed = [run for run in grown if run.largest_batch > run.segments[0].batch]
    report.bar(
        "runs as the product grows them whose batch grew", want=f">= half of {len(grown)}", got=len(changed),
        ok=2 * len(changed) >= len(grown) > 0,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
