"""What planners of placements find and how long they take: `python -m benchmarks.placement [--quick]`.

Random models of 5 to 64 layers on 2, 4 and 16 types (`elastic_core.placement.problem_families`: recommendation models,
and layers in any order), each above a floor of 0.8 of what one type alone reaches. Cost is in parts of the optimum,
which `exact` proves. Times are processor time, so that what else the machine does is not measured. Then what the learnt
planner answers (`learnt_answers`), and HeterPS's headline on recommendation models alone (`headline`). The models are
made up: the figures say how much choosing layers can be worth, not what it is worth on hardware.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.common.report import Report
from benchmarks.placement import headline, learnt_answers
from benchmarks.placement.planners_asked import COLUMNS, Answer, asked, problems, ratios, row

LAYERS, TYPES = (5, 10, 16, 32, 64), (2, 4, 16)
SECONDS = {(16, 4): 0.25, (32, 4): 5.0}  # of `exact`, its slowest; measured on a prototype: 0.23 and 3.1
LARGEST, LARGEST_SECONDS, LARGEST_GAP = (64, 16), 60.0, 0.01
RULES = ("rl_lstm", *headline.RULES)  # milliseconds
SEARCHES = ("genetic", "bayesian", "rl_lstm_search")
SEARCHED = 4  # models of a size that the searches are asked for
QUICK_SEARCHES = (5, 2)
MOST_CHOICES = 5_000  # that brute force is asked for


def size(report: Report, layers: int, types: int, seeds: int, rivals: tuple[str, ...]) -> list[tuple[object, ...]]:
    """One row a planner."""
    loaded = problems(layers, types, seeds)
    best = [asked("exact", problem, 0) for problem in loaded]
    rows = [row(f"{layers} x {types}", "exact", best, best)]
    if types**layers <= MOST_CHOICES:
        every = [asked("brute_force", problem, 0) for problem in loaded]
        rows.append(row(f"{layers} x {types}", "brute_force", every, best))
        worst = max(ratios(every, best), key=lambda ratio: abs(ratio - 1.0))
        report.bar(f"{layers} x {types}: brute force beside exact", want="1.000 always", got=f"{worst:.6f}",
                   ok=abs(worst - 1.0) <= 1e-6)  # fmt: skip
    for name in rivals:
        some = SEARCHED if name in SEARCHES else len(loaded)
        answers = [asked(name, problem, number) for number, problem in enumerate(loaded[:some])]
        rows.append(row(f"{layers} x {types}", name, answers, best[:some]))
        report.figure(f"cost_over_optimum of {name} at {layers} x {types}", ratios(answers, best[:some]))
    report.figure(f"processor_seconds of exact at {layers} x {types}", [answer.seconds for answer in best])
    _bars(report, layers, types, best)
    return rows


def _bars(report: Report, layers: int, types: int, best: list[Answer]) -> None:
    where, slowest = f"{layers} x {types}: exact", max(answer.seconds for answer in best)
    if any(answer.planned is None or answer.planned.gap is None for answer in best):
        report.bar(f"{where}, plans found", want="all", got="not all", ok=False)
        return
    gap = max(answer.planned.gap or 0.0 for answer in best if answer.planned)
    if (layers, types) in SECONDS:
        limit = SECONDS[layers, types]
        report.bar(f"{where}, slowest", want=f"<= {limit:g} s", got=f"{slowest:.3f} s", ok=slowest <= limit)
    if (layers, types) == LARGEST:
        report.bar(f"{where}, gap within {LARGEST_SECONDS:.0f} s", want=f"<= {LARGEST_GAP:.0%}",
                   got=f"{gap:.2e}, {slowest:.1f} s", ok=gap <= LARGEST_GAP and slowest <= LARGEST_SECONDS)  # fmt: skip
    else:
        report.bar(f"{where}, gap", want="proved", got=f"{gap:.1e}", ok=gap <= 1e-7)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer models, searches on the smallest only")
    quick = parser.parse_args().quick
    report = Report("placement", quick=quick)
    rows = []
    for layers in LAYERS:
        for types in TYPES:
            rivals = RULES if quick and (layers, types) != QUICK_SEARCHES else (*RULES, *SEARCHES)
            rows += size(report, layers, types, 2 if quick else 10, rivals)
    report.table("cost in parts of the optimum, and processor time", COLUMNS, rows)
    learnt_answers.answers(report, 20 if quick else learnt_answers.INSTANCES)
    headline.tables(report, 3 if quick else headline.MODELS, headline.RULES if quick else headline.RIVALS)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
