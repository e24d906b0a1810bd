"""How good are forecasts of jobs whose end nobody knows? Judged on real short trainings that were held out.

The corpus (`benchmarks/corpus`) is 942 trainings of 13 families. Everything is learnt from the other runs by what
`elastic_predictors` runs (`control.scheduling.predicting.refit`) and asked as a decision asks it. Two ways to hold out:
*by submission*, a fifth of the runs of known families at a time, and *by family*, a task that nobody has submitted
before.

Classes: all runs that can be labelled by `predict.predictability.hindsight`. Work: the runs that ended by a target loss
or by patience, or at the limit before they got there; asked at submission and at 25, 50 and 75 % of what the run turned
out to be. Judged is what users are shown: the 10, 50 and 90 % quantiles that the default policy decides by, made of
forecast and history by its own function (`benchmarks.corpus.shown_work`), where the forecast counts as much as the
other runs taught that it does for the job's class. Beside it stand those of the raw forecast, and the narrowest
interval that holds 80 % of it (`shortest_interval`), which nobody is shown. Rivals know the limit too: Optimus's curve
(the limit where there is no target), and "as long again", which is exact at half way whatever the job, since half way
is where a run is as long again; so a stage drawn evenly between 10 and 90 % of the run is shown too.

Bars, each by both ways of holding out: area under the ROC curve at 25 % at least 0.90; 80 % intervals hold 70 to 90 %
over at least 200 runs; median relative error of the total at half way at most 10 %, and of those runs alone that ended
before their limit, since a limit is known and most runs come to it; the smaller class at least 20 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from random import Random

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks.common.report import Report
from benchmarks.corpus.history import corpus_runs
from benchmarks.corpus.intervals import quantile, shortest_interval
from benchmarks.corpus.shown_work import shown_totals
from elastic_core.control.scheduling.predicting import lessons, refit
from elastic_core.control.scheduling.predicting.expected_work import history_of
from elastic_core.control.scheduling.predicting.lessons import classes_of
from elastic_core.control.scheduling.predicting.submissions import submission_of
from elastic_core.policy.base.remaining_distribution import History
from elastic_core.predict.forecasts.forecast_files import Forecasters
from elastic_core.predict.forecasts.run_features import Progress, averaged_losses
from elastic_core.predict.forecasts.unlearned import unlearned_forecasts
from elastic_core.predict.predictability.predictability import Classifier
from elastic_core.predict.work import convergence
from elastic_core.protocol.records import FinishedRun

Floats = NDArray[np.float64]

FOLDS = 5
CLASS_SHARES = (0.0, 0.25, 0.5, 0.75)  # the later ones say how far the class is decidable at all
WORK_SHARES = (0.0, 0.25, 0.5, 0.75)
DRAWN = -1.0  # a share that is drawn for each run
RESAMPLES = 2000
QUICK_RUNS = 130
QUICK_KINDS = ("logistic regression",), ("quantile forest",)


@dataclass
class Held:
    """What was said of the runs that were held out."""

    scores: dict[float, list[tuple[bool, float]]] = field(default_factory=dict)  # share -> (label, probability)
    work: dict[float, list[Outcome]] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)
    fit_seconds: list[float] = field(default_factory=list)
    step_errors: list[float] = field(default_factory=list)  # |log|


@dataclass(frozen=True)
class Outcome:
    """One run at one stage. Errors are relative to the true total."""

    inside: bool  # of the interval that is shown
    inside_raw: bool  # between the 10 % and the 90 % quantile of the raw forecast
    inside_shortest: bool  # of its shortest interval
    error: float
    raw_error: float
    prior_error: float
    prior_inside: bool
    optimus_error: float
    lindy_error: float
    at_limit: bool


def splits(
    runs: Sequence[FinishedRun], how: str, seed: int = 0
) -> Iterator[tuple[list[FinishedRun], list[FinishedRun]]]:
    """(learnt from, held out)."""
    if how == "family":
        groups = [run.description.entry_point for run in runs]
    else:
        order = list(range(len(runs)))
        Random(seed).shuffle(order)
        groups = [str(place % FOLDS) for place in np.argsort(order)]
    for held_out in sorted(set(groups)):
        yield (
            [run for run, group in zip(runs, groups, strict=True) if group != held_out],
            [run for run, group in zip(runs, groups, strict=True) if group == held_out],
        )


def judge(
    runs: Sequence[FinishedRun], taught: Mapping[str, lessons.Lesson], how: str, only: int | None,
    only_classes: bool = False,
) -> Held:  # fmt: skip
    """`taught`: of the runs that can be labelled, by job; what each teaches depends on itself alone."""
    held = Held()
    for number, (train, test) in enumerate(splits(runs, how)):
        if only is not None and number >= only:
            break
        started = time.process_time()
        by_others = {run.job_id: taught[run.job_id] for run in train if run.job_id in taught}
        classifier = lessons.fit_classifier(list(by_others.values()))
        classes(held, classifier, test)
        if only_classes:
            held.kinds.append(classifier.kind)
            continue
        forecasters, said = refit.fit_forecasters(train, by_others)
        held.fit_seconds.append(time.process_time() - started)
        held.kinds.append(f"{classifier.kind}; {said}")
        print(f"{how}, fold {number + 1}: {held.kinds[-1]}", flush=True)
        open_end = [run for run in test if run.ended_by_itself and not run.description.end_is_known]
        work(held, forecasters, classifier, open_end, history_of(train))
        steps(held, forecasters, test)
    return held


def classes(held: Held, classifier: Classifier, test: Sequence[FinishedRun]) -> None:
    labelled = [(run, label) for run in test if (label := lessons.label_of(run)) is not None]
    for share in CLASS_SHARES:
        progress = [Progress.until(share * run.work_done, run.losses, run.metrics) for run, _ in labelled]
        said = classes_of(classifier, [run for run, _ in labelled], progress)
        held.scores.setdefault(share, []).extend(
            (label, probability) for (_, label), probability in zip(labelled, said, strict=True)
        )


def work(
    held: Held, forecasters: Forecasters, classifier: Classifier, test: Sequence[FinishedRun], history: History
) -> None:
    """`history`: what the policy remembers of the runs that were learnt from."""
    assert forecasters.work is not None
    jobs = [run.description for run in test]
    for share in (*WORK_SHARES, DRAWN):
        at = [Random(run.job_id).uniform(0.1, 0.9) if share == DRAWN else share for run in test]
        progress = [
            Progress.until(part * run.work_done, run.losses, run.metrics) for part, run in zip(at, test, strict=True)
        ]
        said, prior = forecasters.work.forecasts(jobs, progress), unlearned_forecasts(jobs, progress)
        done, judged = [so_far.done for so_far in progress], classes_of(classifier, test, progress)
        weighed = [forecasters.weights.told_with(one, its_class) for one, its_class in zip(said, judged, strict=True)]
        shown = shown_totals(test, done, weighed, judged, history)
        for run, so_far, forecast, unlearned, (low, median, high) in zip(
            test, progress, said, prior, shown, strict=True
        ):
            total, most = float(run.work_done), float(run.description.most_samples)
            shortest_low, shortest_high = shortest_interval(forecast, so_far.done, most)
            prior_low, prior_high = shortest_interval(unlearned, so_far.done, most)
            held.work.setdefault(share, []).append(
                Outcome(
                    inside=_holds(low, high, total),
                    inside_raw=_holds(quantile(forecast, 0.1), quantile(forecast, 0.9), total),
                    inside_shortest=_holds(shortest_low, shortest_high, total),
                    error=abs(median / total - 1.0),
                    raw_error=abs(quantile(forecast, 0.5) / total - 1.0),
                    prior_error=abs(quantile(unlearned, 0.5) / total - 1.0),
                    prior_inside=_holds(prior_low, prior_high, total),
                    optimus_error=abs(optimus(run, so_far) / total - 1.0),
                    lindy_error=abs(min(2.0 * so_far.done, most) / total - 1.0),
                    at_limit=total >= most,
                )
            )


def _holds(low: float, high: float, total: float) -> bool:
    """Within a hundredth of a per cent: totals went through logarithms."""
    return low * (1 - 1e-4) <= total <= high * (1 + 1e-4)


def optimus(run: FinishedRun, progress: Progress) -> float:
    """Where Optimus's curve comes down to the target, at most at the limit; the limit where it cannot tell."""
    target, most = run.description.target_loss, float(run.description.most_samples)
    curve = convergence.optimus(progress.losses) if target is not None else None
    total = curve.steps_to(target) if curve is not None and target is not None else inf
    return min(max(total, progress.done), most) if isfinite(total) else most


def steps(held: Held, forecasters: Forecasters, test: Sequence[FinishedRun]) -> None:
    assert forecasters.steps is not None
    kinds = [[point.type for point in run.profile] for run in test]
    for run, said in zip(test, forecasters.steps.forecasts([r.description for r in test], kinds), strict=True):
        middle = said.probabilities.index(0.5)
        for point in run.profile:
            held.step_errors.append(abs(float(np.log(said.seconds[point.type][middle] / point.step_seconds))))


def auc_with_interval(scores: Sequence[tuple[bool, float]], seed: int = 0) -> tuple[float, float, float]:
    """(area, low, high): 95 % by resampling the runs."""
    labels, said = np.asarray([label for label, _ in scores]), np.asarray([score for _, score in scores])
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(RESAMPLES):
        rows = rng.integers(0, len(labels), len(labels))
        if 0 < labels[rows].sum() < len(rows):
            drawn.append(roc_auc_score(labels[rows], said[rows]))
    return float(roc_auc_score(labels, said)), *map(float, np.quantile(drawn, (0.025, 0.975)))


def binomial(hits: Sequence[bool]) -> tuple[float, float, float]:
    """(share, low, high): Wilson's 95 % interval."""
    count, share, z = len(hits), float(np.mean(hits)), 1.96
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * float(np.sqrt(share * (1 - share) / count + z * z / (4 * count * count))) / (1 + z * z / count)
    return share, centre - half, centre + half


def show(report: Report, how: str, held: Held, quick: bool) -> None:
    aucs = {share: auc_with_interval(scores) for share, scores in held.scores.items()}
    report.table(
        f"classes, held out by {how}: area under the ROC curve", ["asked at", "runs", "area", "95 % interval"],
        [[_stage(share), len(held.scores[share]), area, f"{low:.3f} to {high:.3f}"]
         for share, (area, low, high) in aucs.items()],
    )  # fmt: skip
    report.figure(f"{how}: scores", held.scores)
    report.figure(f"{how}: kinds", held.kinds)
    if not quick:
        area, low, high = aucs[0.25]
        report.bar(
            f"classes at 25 %, held out by {how}: area under the ROC curve", want=">= 0.90",
            got=f"{area:.3f} ({low:.3f} to {high:.3f})", ok=area >= 0.90,
        )  # fmt: skip
    if held.work:
        show_work(report, how, held, quick)


def show_work(report: Report, how: str, held: Held, quick: bool) -> None:
    rows = []
    for share, outcomes in held.work.items():
        inside, low, high = binomial([o.inside for o in outcomes])
        early = [o for o in outcomes if not o.at_limit]
        rows.append([
            _stage(share), len(outcomes), f"{inside:.2f} ({low:.2f} to {high:.2f})",
            float(np.mean([o.inside_raw for o in outcomes])), float(np.mean([o.inside_shortest for o in outcomes])),
            float(np.mean([o.prior_inside for o in outcomes])), _median([o.error for o in outcomes]),
            _median([o.raw_error for o in outcomes]), _median([o.prior_error for o in outcomes]),
            _median([o.optimus_error for o in outcomes]), _median([o.lindy_error for o in outcomes]),
            _median([o.error for o in early]), _median([o.optimus_error for o in early]),
        ])  # fmt: skip
    report.table(
        f"total work, held out by {how}: what the 80 % interval that is shown holds, and median relative errors",
        ["asked at", "runs", "held", "held, raw 10 to 90 %", "held, raw shortest", "held, prior shortest", "error",
         "raw", "prior", "Optimus", "as long again", "error, ended before the limit", "Optimus, the same"], rows,
    )  # fmt: skip
    report.figure(f"{how}: work", {share: [vars_of(o) for o in outcomes] for share, outcomes in held.work.items()})
    report.figure(f"{how}: fit CPU seconds", held.fit_seconds)
    report.figure(f"{how}: step errors", held.step_errors)
    print(f"step times: median error {np.expm1(np.median(held.step_errors)):.0%}; "
          f"a fit takes {np.median(held.fit_seconds):.0f} s of a core")  # fmt: skip
    if quick:
        return
    for share in (0.0, 0.25, 0.5):
        inside = float(np.mean([o.inside for o in held.work[share]]))
        shortest = float(np.mean([o.inside_shortest for o in held.work[share]]))
        report.bar(
            f"80 % intervals of work {_stage(share)}, held out by {how}", want="hold 0.70 to 0.90 of >= 200 runs",
            got=f"{inside:.3f} of {len(held.work[share])}; the raw forecast's shortest {shortest:.3f}",
            ok=0.70 <= inside <= 0.90 and len(held.work[share]) >= 200,
        )  # fmt: skip
    half_way = held.work[0.5]
    early = [o for o in half_way if not o.at_limit]
    for whose, some in (("", half_way), (", of those that ended before their limit", early)):
        error, raw = _median([o.error for o in some]), _median([o.raw_error for o in some])
        report.bar(
            f"total work at half way, held out by {how}{whose}: median relative error", want="<= 10 %",
            got=f"{error:.1%} of {len(some)}; the raw forecast's {raw:.1%}", ok=error <= 0.10,
        )  # fmt: skip


def vars_of(outcome: Outcome) -> list[float]:
    return [float(getattr(outcome, name)) for name in Outcome.__dataclass_fields__]


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _stage(share: float) -> str:
    return {0.0: "at submission", 0.5: "half way", DRAWN: "at any time"}.get(share, f"at {share:.0%}")


def decision_cost(report: Report, runs: Sequence[FinishedRun], taught: Mapping[str, lessons.Lesson]) -> None:
    """What a decision about 40 jobs asks once in `CLASS_SECONDS`: milliseconds of CPU."""
    classifier, (forecasters, _) = lessons.fit_classifier(list(taught.values())), refit.fit_forecasters(runs, {})
    assert forecasters.work is not None
    assert forecasters.steps is not None
    asked = [run for run in runs if not run.description.end_is_known][:40]
    jobs = [run.description for run in asked]
    spent = []
    for share in np.linspace(0.2, 0.6, 9):  # another share: nothing is remembered
        progress = [Progress.until(float(share) * run.work_done, run.losses, run.metrics) for run in asked]
        started = time.process_time()
        forecasters.work.forecasts(jobs, progress)
        forecasters.steps.forecasts(jobs, [["cpu"]] * len(jobs))
        classifier.probability(
            [submission_of(job, resubmitted=False) for job in jobs],
            [averaged_losses(so_far) for so_far in progress],
            classifier.describe(jobs, progress),
        )
        spent.append(1e3 * (time.process_time() - started))
    report.figure("milliseconds of CPU for the class and the forecasts of 40 jobs", spent)
    report.table(
        "cost of the answers about 40 jobs, asked at most every 30 s", ["", "ms of CPU"],
        [["median", float(np.median(spent))], ["most", max(spent)]],
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a third of the runs, one fold, one kind each")
    parser.add_argument("--how", choices=["submission", "family"], help="only this way to hold out")
    parser.add_argument("--classes", action="store_true", help="only the classes, without forecasts of work")
    args = parser.parse_args()
    report = Report("forecasts", quick=args.quick)
    runs = list(corpus_runs())
    if args.quick:
        runs = runs[:QUICK_RUNS]
        lessons.KINDS, refit.FORECAST_KINDS = QUICK_KINDS
    labels = [label for run in runs if (label := lessons.label_of(run)) is not None]
    smaller = min(np.mean(labels), 1.0 - np.mean(labels))
    report.figure("labels", labels)
    report.bar("labels: share of the smaller class", want=">= 20 %", got=f"{smaller:.1%} of {len(labels)}",
               ok=smaller >= 0.20)  # fmt: skip
    taught = lessons.lessons_of(runs)
    for how in ("submission", "family") if args.how is None else (args.how,):
        if args.quick and how == "family":
            continue
        show(report, how, judge(runs, taught, how, 1 if args.quick else None, args.classes), args.quick)
    if not args.classes:
        decision_cost(report, runs, taught)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
