"""What the learnt planner answers: `python -m benchmarks.placement.learnt_answers [--quick]`.

100 models of 16 layers on 4 types, of both families, that the policy was not trained on: the cost of its answers in
parts of the optimum that `exact` proves, and the processor time of an answer. Beside it what its parts are worth:
without the changes that follow the draws, without draws, by a policy that was never trained; and `rl_lstm_search`,
HeterPS's way, which trains on each problem. Then HeterPS's headline restated, on recommendation models alone
(`headline`). Models and prices are made up: the figures say nothing about hardware.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import torch

from benchmarks.common.report import Report
from benchmarks.placement import headline
from benchmarks.placement.planners_asked import COLUMNS, Answer, asked, problems, ratios, row
from elastic_core.placement.learnt.layer_policy import LayerPolicy
from elastic_core.placement.learnt.rl_lstm import Answering, RlLstm
from elastic_core.placement.planners.planner import Planner

LAYERS, TYPES, INSTANCES = 16, 4, 100
MEDIAN, WORST, SECONDS = 1.02, 1.10, 0.020
SEARCHED = 5  # instances that are also trained on one by one
UNSEEN = 7_000  # seeds from here on, apart from the other tables'


def answers(report: Report, instances: int) -> None:
    loaded = problems(LAYERS, TYPES, instances, first=UNSEEN)
    best = [asked("exact", problem, 0) for problem in loaded]
    asked("rl_lstm", loaded[0], 0)  # reads the policy, once a process
    where = f"{LAYERS} x {TYPES}"
    rows = [row(where, "exact", best, best)]
    learnt = [asked("rl_lstm", problem, number) for number, problem in enumerate(loaded)]
    rows.append(row(where, "rl_lstm", learnt, best))
    for name, planner in _parts().items():
        rows.append(row(where, name, [asked(planner, problem, n) for n, problem in enumerate(loaded)], best))
    searched = [asked("rl_lstm_search", problem, number) for number, problem in enumerate(loaded[:SEARCHED])]
    rows.append(row(where, f"rl_lstm_search, of the first {len(searched)}", searched, best[:SEARCHED]))
    report.table(f"{instances} problems that the policy never saw: cost in parts of the optimum, processor time",
                 COLUMNS, rows)  # fmt: skip
    _bars(report, learnt, best)


def _parts() -> dict[str, Planner]:
    torch.manual_seed(0)
    untrained = LayerPolicy()
    return {
        "rl_lstm without changes": RlLstm(answering=Answering(rounds=0)),
        "rl_lstm, likeliest choice alone": RlLstm(answering=Answering(draws=0, rounds=0)),
        "untrained policy": RlLstm(untrained),
        "untrained policy without changes": RlLstm(untrained, Answering(rounds=0)),
    }


def _bars(report: Report, learnt: list[Answer], best: list[Answer]) -> None:
    of, seconds = ratios(learnt, best), [answer.seconds for answer in learnt]
    report.figure("cost_over_optimum of rl_lstm", of)
    report.figure("processor_seconds of rl_lstm", seconds)
    found = f"{len(of)} of {len(learnt)}"
    where = f"rl_lstm at {LAYERS} x {TYPES}"
    median, worst, usual = statistics.median(of), max(of), statistics.median(seconds)
    report.bar(f"{where}: problems answered", want="all", got=found, ok=len(of) == len(learnt))
    report.bar(f"{where}: median cost over the optimum", want=f"<= {MEDIAN}", got=f"{median:.4f}", ok=median <= MEDIAN)
    report.bar(f"{where}: worst cost over the optimum", want=f"<= {WORST:.2f}", got=f"{worst:.4f}", ok=worst <= WORST)
    report.bar(f"{where}: median processor time of an answer", want=f"<= {1e3 * SECONDS:.0f} ms",
               got=f"{1e3 * usual:.1f} ms, slowest {1e3 * max(seconds):.1f} ms", ok=usual <= SECONDS)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer models")
    quick = parser.parse_args().quick
    report = Report("placement_learnt", quick=quick)
    answers(report, 20 if quick else INSTANCES)
    headline.tables(report, 3 if quick else headline.MODELS, headline.RULES if quick else headline.RIVALS)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
