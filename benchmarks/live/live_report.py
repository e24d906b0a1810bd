"""The live benchmark's verdict over the runs that are kept, the simulator's word on the same jobs beside them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from scipy.stats import spearmanr

from benchmarks.common.report import Report
from benchmarks.live import live_forecasts
from benchmarks.live.contenders import CONTENDERS, OTHERS, SEEDS
from benchmarks.live.live_run import mean_completion
from benchmarks.live.live_simulated import (
    draws_agree,
    mean_if_all_ends_were_known,
    mean_of,
    measured_pauses,
    simulate_as_run,
    simulated_by_means,
)
from benchmarks.live.live_workload import LiveWorkload
from benchmarks.live.run_record import Runs

OVER_FIXED, OVER_OTHERS, PREDICTORS_WORTH = 0.6, 0.9, 1.1
SIMULATED_WITHIN, RANK_CORRELATION = 0.1, 0.9
OURS, WITHOUT = "horizon", "horizon-without-predictors"


def report(loaded: LiveWorkload, runs: Runs, where_no_end_is_known: Runs) -> int:
    """`where_no_end_is_known`: of the second workload."""
    result = Report("live", quick=False)
    result.figure("fingerprint", loaded.fingerprint())
    labels = [label for label in CONTENDERS if any(label == one for one, _ in runs)]
    means = {label: statistics.fmean(_of(runs, label, mean_completion)) for label in labels}
    pauses = measured_pauses(runs.values())
    draws = {key: simulate_as_run(loaded, one, pauses) for key, one in runs.items()}
    simulations = {key: mean_of(of) for key, of in draws.items()}
    by_means = {key: simulated_by_means(loaded, one) for key, one in runs.items()}
    result.figure("runs", [{**one, "simulated_completion_seconds": simulations[key]} for key, one in runs.items()])
    _contenders_table(result, runs, simulations, labels, means)
    _judge_means(result, means)
    _judge_predictors(result, where_no_end_is_known)
    ends_known = [
        (seed, statistics.fmean(simulations[label, seed].values()), mean_if_all_ends_were_known(loaded, one, pauses))
        for (label, seed), one in sorted(runs.items())
        if label == OURS
    ]
    if ends_known:
        rows = [(seed, told, known, told / known) for seed, told, known in ends_known]
        columns = ("seed", "as run", "all ends declared", "ratio: the most that predicting ends can be worth")
        result.table("Simulated mean completion of horizon, if it had known every end", columns, rows)
    missing = [f"{label} {seed}" for label in CONTENDERS for seed in SEEDS if (label, seed) not in runs]
    got = f"without {', '.join(missing)}" if missing else "all"
    result.bar("every contender was run with every seed", want="all", got=got, ok=not missing)
    columns = ("a start alone", "more for each other start under way", "a resize in place")
    result.table("Seconds without training, by least squares over all runs", columns,
                 [(pauses.start, pauses.each_other, pauses.in_place)])  # fmt: skip
    _judge_simulations(result, runs, simulations, by_means, {key: draws_agree(of) for key, of in draws.items()})
    _forecasts(result, [one for (label, _), one in runs.items() if label == OURS])
    columns = ("", "seed", "began", "commit")
    result.table("Which code each run is of", columns, [_origin(*key, one) for key, one in sorted(runs.items())])
    wrong = [f"{label} {seed}: {line}" for (label, seed), one in runs.items() for line in one["problems"]]
    got = "; ".join(wrong[:3]) or "nothing wrong"
    result.bar("every job finished, read each sample once, was registered", want="nothing wrong", got=got, ok=not wrong)
    imported = [one["history"] for one in runs.values()]
    result.bar("the ledger had imported the corpus", want="in every run", got=imported[:1], ok=all(imported))
    return result.finish()


def _origin(label: str, seed: int, one: Mapping[str, Any]) -> tuple[str, int, str, str]:
    return label, seed, datetime.fromtimestamp(one["began"], UTC).strftime("%Y-%m-%d %H:%M UTC"), one["commit"]


def _of(runs: Runs, label: str, figure: Any) -> list[float]:
    return [figure(one) for (name, _), one in sorted(runs.items()) if name == label]


def _contenders_table(
    result: Report, runs: Runs, simulations: Mapping[tuple[str, int], Mapping[str, float]],
    labels: Sequence[str], means: Mapping[str, float],
) -> None:  # fmt: skip
    rows = []
    for label in labels:
        own = [(key, one) for key, one in sorted(runs.items()) if key[0] == label]
        jobs = [job for _, one in own for job in one["jobs"]]
        simulated_mean = statistics.fmean(statistics.fmean(simulations[key].values()) for key, _ in own)
        rows.append(
            (
                label,
                len(own),
                means[label],
                max(job["completion_seconds"] or 0.0 for job in jobs),
                statistics.fmean(job["resizes"] for job in jobs),
                statistics.fmean(job["batch_changes"] for job in jobs),
                sum(job["restarts"] for job in jobs),
                simulated_mean,
                simulated_mean / means[label],
                statistics.fmean(one["cpu_busy"] for _, one in own),
            )
        )
    columns = (
        "", "runs", "mean s", "slowest s", "resizes a job", "batch changes a job", "restarts", "simulated mean s",
        "simulated / live", "CPU busy",
    )  # fmt: skip
    result.table("Completion of 24 jobs on 16 slots, live and simulated", columns, rows)


def _judge_means(result: Report, means: Mapping[str, float]) -> None:
    ours = means.get(OURS)
    rivals = {label: means[label] for label in OTHERS if label in means}
    for name, most, rival in (
        ("fixed", OVER_FIXED, means.get("fixed")),
        ("the best other", OVER_OTHERS, min(rivals.values(), default=None)),
    ):
        got = None if ours is None or rival is None else round(ours / rival, 3)
        result.bar(
            f"mean completion of horizon over {name}", want=f"<= {most}", got=got, ok=got is not None and got <= most
        )
    without = means.get(WITHOUT)
    got = None if ours is None or without is None else round(without / ours, 3)
    ok = got is not None and got >= PREDICTORS_WORTH
    result.bar("mean completion without predictors over with them", want=f">= {PREDICTORS_WORTH}", got=got, ok=ok)


def _judge_predictors(result: Report, runs: Runs) -> None:
    """Where every job's end is unknown, of which in the first workload only a quarter is."""
    means = {label: _of(runs, label, mean_completion) for label in (OURS, WITHOUT)}
    got = None
    if all(means.values()):
        ours, without = (statistics.fmean(means[label]) for label in (OURS, WITHOUT))
        got = round(without / ours, 3)
        rows = [(label, len(of), statistics.fmean(of), *(min(of), max(of))) for label, of in means.items()]
        columns = ("", "runs", "mean s", "least of a run", "most of a run")
        result.table("Completion of the same jobs where every end is unknown", columns, rows)
    result.bar(
        "mean completion without predictors over with them, every end unknown", want=f">= {PREDICTORS_WORTH}", got=got,
        ok=got is not None and got >= PREDICTORS_WORTH,
    )  # fmt: skip


def _judge_simulations(
    result: Report, runs: Runs, simulations: Mapping[tuple[str, int], Mapping[str, float]],
    by_means: Mapping[tuple[str, int], Mapping[str, float]], at_best: Mapping[tuple[str, int], float],
) -> None:  # fmt: skip
    """`at_best`: the rank correlation that draws of the simulator have among each other."""
    rows = []
    for (label, seed), one in sorted(runs.items()):
        ratio, rank = _agreement(one, simulations[label, seed])
        rows.append((label, seed, ratio, rank, at_best[label, seed], *_agreement(one, by_means[label, seed])))
        within = abs(ratio - 1.0) <= SIMULATED_WITHIN
        result.bar(f"{label}, seed {seed}: simulated over live mean", want="0.9 to 1.1", got=round(ratio, 3), ok=within)
        result.bar(
            f"{label}, seed {seed}: rank correlation of jobs", want=f">= {RANK_CORRELATION}", got=round(rank, 3),
            ok=rank >= RANK_CORRELATION,
        )  # fmt: skip
    columns = (
        "", "seed", "simulated / live", "rank", "rank of a draw among draws", "simulated / live, by means",
        "rank, by means",
    )  # fmt: skip
    result.table("Simulated against live: as judged, and with every submission and pause at its mean", columns, rows)


def _agreement(one: Mapping[str, Any], simulated: Mapping[str, float]) -> tuple[float, float]:
    """(simulated over live mean, rank correlation) over the jobs that ended."""
    live = {job["name"]: job["completion_seconds"] for job in one["jobs"] if job["completion_seconds"]}
    both = sorted(live.keys() & simulated.keys())
    said, true = [simulated[name] for name in both], [live[name] for name in both]
    return statistics.fmean(said) / statistics.fmean(true), float(spearmanr(said, true).statistic)


def _forecasts(result: Report, outcomes: Sequence[Mapping[str, Any]]) -> None:
    forecasts = [forecast for outcome in outcomes for forecast in outcome["forecasts"]]
    rows = live_forecasts.errors(forecasts)
    if rows:
        columns: tuple[str, ...] = ("", "forecasts", "median error", "said later by s, median", "were left s, median")
        result.table("Forecast finish times of horizon against the true ones", columns, rows)
    held = live_forecasts.coverage(forecasts)
    if held is not None:
        inside, count, low, high = held
        cells = (inside, count, inside / count, f"{low:.2f} to {high:.2f}")
        columns = ("inside", "forecasts", "share", "95 % interval")
        result.table("80 % intervals of work whose end was not known", columns, [cells])


def jobs_table(result: Report, outcome: Mapping[str, Any]) -> None:
    rows = [
        (job["name"], job["completion_seconds"] or 0.0, job["samples"], len(job["segments"]), job["resizes"],
         job["batch_changes"], job["restarts"], " ".join(_stretch(segment) for segment in job["segments"]))
        for job in outcome["jobs"]
    ]  # fmt: skip
    columns = ("job", "completion s", "samples", "segments", "resizes", "batch changes", "restarts", "ran on")
    result.table("Jobs", columns, rows)


def _stretch(segment: Mapping[str, Any]) -> str:
    ((kind, count),) = segment["slots"].items()
    return f"{count} {kind}/{segment['batch']}"
