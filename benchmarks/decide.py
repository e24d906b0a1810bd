"""How long one decision takes, how that grows, and how good it is: `python -m benchmarks.decide [--quick]`.

Every policy drives a simulation of its own over the same generated jobs: all there at once, up to 64 slots each, one
decision a simulated minute, a few jobs ending and coming and new configurations being measured in between. Every job
has an entry point of its own, so that nothing learnt of one is shared with another; `horizon` is also timed where 25
jobs share one, which the bars were about before. The fits of what was newly measured are in its figures. Figures are
processor time of the decision alone (what else the machine does is not in them), with garbage collected between
decisions, as in the policy process; models that a snapshot brings along are fitted before, as the control plane does.
The first decision knows nothing and is shown by itself; the median of the others is judged. `pollux`, `ones` and
`bftrainer` search for up to a second and more: the small size only. Growth is the exponent of jobs x types in a
least-squares fit.

In production a policy is asked in a process of its own: what that adds to `horizon`'s decisions at the smallest size is
processor time of both sides together, JSON both ways in it, against asking here, over the same pictures.

Quality: 100 small pictures out of simulations, the value of `horizon`'s plan under its own objective against the
optimum that HiGHS proves for it under the same rule against flapping; and, as it was judged before, its choice where
nobody has just moved against the optimum without the rule. What the rule itself costs is printed too.

Bars: a median time for each policy and size, growth with an exponent of at most 1, at most 10 ms more by the policy
process, 98 % of the proven optimum.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import mean, median
from typing import Any

import numpy as np
import psutil
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from benchmarks.common.report import Report
from elastic_core.control.scheduling.deciders import Decider, DecidesHere
from elastic_core.control.scheduling.policy_process import PolicyProcess
from elastic_core.domain import Limits, Node, Plan, ProfilePoint, Snapshot
from elastic_core.host.garbage import keep_what_is_loaded, without_collections
from elastic_core.policy import registry
from elastic_core.policy.base.policy import Law, Policy
from elastic_core.policy.horizon import horizon
from elastic_core.policy.rules import flapping
from elastic_core.policy.rules.claims import ClaimContext
from elastic_core.predict.speed.fit import job_models
from elastic_core.predict.speed.throughput import Floats
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.ground_truth.workload import Workload, nodes, workload
from elastic_core.sim.workloads.generated_jobs import generated

OURS = "horizon"
ROUND = 60.0  # simulated seconds
# Of each size. At the largest the simulator itself needs a minute of processor time to carry a plan out.
ROUNDS_TIMED, FEW_ROUNDS = 14, 7
MOST_SLOTS = 64  # of one job
SHARING = 25  # jobs of one entry point
NEWCOMERS = 0.05  # of the jobs, each round
# (slots, jobs): seconds that horizon may take, and who else is timed there
SIZES = {(64, 40): 0.020, (2048, 500): 0.100, (10_000, 5_000): 1.0}
RIVALS = {(64, 40): ("sia", "elastic_batch", "bftrainer", "ones", "pollux"), (2048, 500): ("sia", "elastic_batch")}
QUICK_SIZES = ((64, 40), (2048, 500))
QUICK_RIVALS = {(64, 40): ("sia", "elastic_batch")}
GROWTH_JOBS, QUICK_GROWTH_JOBS = (250, 500, 1000, 2000), (100, 200, 400)
GROWTH_TYPES = (1, 2, 3)
WANT_EXPONENT = 1.0
INSTANCES, QUICK_INSTANCES = 100, 30
MOST_JOBS = 8  # of an instance
WANT_QUALITY = 0.98
WANT_MORE_BY_PROCESS = 0.010  # seconds
TIMES_ASKED = 10  # each picture


@dataclass
class Observed:
    """A policy that another one is asked through: keeps how long it took and what it was asked."""

    policy: Policy
    keep: bool = False
    seconds: list[float] = field(default_factory=list)
    pictures: list[tuple[Snapshot, Plan]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def laws(self) -> frozenset[Law]:
        return self.policy.laws

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        with without_collections():
            started = time.process_time()
            plan = self.policy.decide(snapshot, rng)
            self.seconds.append(time.process_time() - started)
        gc.collect()
        if self.keep:
            self.pictures.append((snapshot, plan))
        return plan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the largest size, fewer rounds and instances")
    quick = parser.parse_args().quick
    report = Report("decide", quick=quick)
    keep_what_is_loaded()
    time_sizes(report, quick)
    time_growth(report, quick)
    time_process(report)
    judge_quality(report, QUICK_INSTANCES if quick else INSTANCES)
    return report.finish()


def time_sizes(report: Report, quick: bool) -> None:
    rows = []
    for slots, jobs in QUICK_SIZES if quick else SIZES:
        want = SIZES[slots, jobs]
        rivals = (QUICK_RIVALS if quick else RIVALS).get((slots, jobs), ())
        for name, sharing in ((OURS, 1), (OURS, SHARING), *((rival, 1) for rival in rivals)):
            rounds = FEW_ROUNDS if quick or (slots, jobs) == max(SIZES) else ROUNDS_TIMED
            first, *others = decision_seconds(name, pool(slots), jobs, rounds, sharing)
            report.figure(f"{name}_{slots}_slots_{jobs}_jobs_{sharing}_a_task_seconds", [first, *others])
            typical = median(others)
            rows.append((name, slots, jobs, sharing, 1e3 * typical, 1e3 * max(others), 1e3 * first))
            if name == OURS:
                entry_points = "an entry point each" if sharing == 1 else f"{sharing} an entry point"
                report.bar(
                    f"{name}: {jobs} jobs, {entry_points}, on {slots} slots of three types, median decision",
                    want=f"<= {1e3 * want:.0f} ms",
                    got=f"{1e3 * typical:.1f} ms",
                    ok=typical <= want,
                )
    columns = ("policy", "slots", "jobs", "jobs an entry point", "median ms", "max ms", "first ms")
    report.table("Processor time of one decision", columns, rows)


def time_growth(report: Report, quick: bool) -> None:
    sizes, seconds, rows = [], [], []
    for kinds in GROWTH_TYPES:
        for jobs in QUICK_GROWTH_JOBS if quick else GROWTH_JOBS:
            _, *others = decision_seconds(OURS, pool(2 * jobs, kinds), jobs, 6, SHARING)
            sizes.append(jobs * kinds)
            seconds.append(median(others))
            rows.append((jobs, kinds, 1e3 * seconds[-1]))
    exponent, constant = np.polyfit(np.log(sizes), np.log(seconds), 1)
    report.figure("growth", {"jobs_x_types": sizes, "seconds": seconds, "exponent": float(exponent)})
    report.table(f"{OURS}, two slots a job", ("jobs", "types", "median ms"), rows)
    print(f"fit: {1e6 * np.exp(constant):.3g} us x (jobs x types)^{exponent:.2f}")
    report.bar(
        f"{OURS}: growth with jobs x types, exponent",
        want=f"<= {WANT_EXPONENT:g}",
        got=f"{exponent:.2f}",
        ok=exponent <= WANT_EXPONENT,
    )


def time_process(report: Report) -> None:
    slots, jobs = min(SIZES)
    observed = Observed(registry.get(OURS), keep=True)
    options = Options(round_seconds=ROUND, timeline=False, max_decisions=7)
    simulate(crowd(jobs, 7, 1), pool(slots), observed, options, fit=_unread)
    pictures = [picture for picture, _ in observed.pictures] * TIMES_ASKED
    asked = PolicyProcess(seconds=60.0, memory_mb=4096)
    try:
        here, _ = _processor_seconds(DecidesHere(), pictures, lambda: 0.0)
        asked.decide("fair_share", pictures[0])  # it is started
        assert asked._child is not None
        process = psutil.Process(asked._child._process.pid)
        ours, there = _processor_seconds(asked, pictures, lambda: sum(process.cpu_times()[:2]))
    finally:
        asked.close()
    more = ours + there - here
    report.figure("policy_process_seconds", {"here": here, "control_plane": ours, "policy_process": there})
    print(
        f"{OURS}, {jobs} jobs on {slots} slots: {1e3 * here:.1f} ms here; in the policy process {1e3 * there:.1f} ms, "
        f"and {1e3 * ours:.1f} ms for who asks"
    )
    report.bar(
        f"{OURS}: {jobs} jobs on {slots} slots, more by the policy process",
        want=f"<= {1e3 * WANT_MORE_BY_PROCESS:.0f} ms",
        got=f"{1e3 * more:.1f} ms",
        ok=more <= WANT_MORE_BY_PROCESS,
    )


def _processor_seconds(
    decider: Decider, pictures: Sequence[Snapshot], of_process: Callable[[], float]
) -> tuple[float, float]:
    """Mean of one decision: of this process, and of the one that is asked."""
    own, other = time.process_time(), of_process()
    for picture in pictures:
        decider.decide(OURS, picture)
    return (time.process_time() - own) / len(pictures), (of_process() - other) / len(pictures)


def decision_seconds(name: str, where: tuple[Node, ...], jobs: int, rounds: int, sharing: int) -> list[float]:
    observed = Observed(registry.get(name))
    options = Options(round_seconds=ROUND, timeline=False, max_decisions=rounds)
    simulate(crowd(jobs, rounds, sharing), where, observed, options, fit=_unread if name == OURS else job_models)
    print(f"{name}, {jobs} jobs, {sharing} a task: {median(observed.seconds):.3g} s", file=sys.stderr, flush=True)
    return observed.seconds


def _unread(points: tuple[ProfilePoint, ...], limits: Limits) -> None:
    """`horizon` fits its own models, by task, inside its decision."""


def pool(slots: int, kinds: int = 3) -> tuple[Node, ...]:
    """Sia's proportions (3 t4 : 3 rtx : 2 a100, on nodes of 4, 8 and 8), as near as whole nodes come to them."""
    if kinds == 1:
        return nodes("t4", slots // 4, 4)
    rtx = 8 * -(-slots * 3 // 64)
    if kinds == 2:
        return (*nodes("rtx", rtx // 8, 8), *nodes("t4", (slots - rtx) // 4, 4))
    return (*nodes("t4", rtx // 4, 4), *nodes("rtx", rtx // 8, 8), *nodes("a100", (slots - 2 * rtx) // 8, 8))


def crowd(jobs: int, rounds: int, sharing: int) -> Workload:
    """`jobs` at once, then as many newcomers a round as end in a round or so. `sharing`: jobs of one task, 1 or about
    25, then of at least five tasks."""
    coming = max(round(NEWCOMERS * jobs), 1)
    drawn = generated(jobs, num_jobs=jobs + coming * rounds).jobs
    tasks = max(jobs // (5 * sharing), 1)  # of each of the five families
    return workload(
        f"{jobs} at once",
        [
            replace(
                job,
                submitted_at=0.0 if index < jobs else ROUND * ((index - jobs) // coming + 0.5),
                task=job.job_id if sharing == 1 else f"{job.task}/{index % tasks}",
                limits=replace(job.limits, slot_counts=tuple(range(1, MOST_SLOTS + 1))),
            )
            for index, job in enumerate(drawn)
        ],
    )


def judge_quality(report: Report, count: int) -> None:
    """Real plans against what can be proven under the same rule: who just moved does not move back, who just started
    is not stopped. Beside them what is chosen where nobody has just moved, against the optimum without any rule."""
    under_rule, unbound, cost_of_rule = [], [], []
    for picture, plan in small_pictures(count):
        problem = horizon.problem(picture)
        assert problem is not None
        optimum = milp_optimum(problem, problem.values)
        values, must_run = no_flapping(picture, problem)
        bound = milp_optimum(problem, values, must_run)
        state = {name: value for name, value in picture.policy_state.items() if name != "moves"}
        free = registry.get(OURS).decide(replace(picture, policy_state=state), Random(picture.version))
        under_rule.append(_part(value_of(plan, problem), bound))
        unbound.append(_part(value_of(free, problem), optimum))
        cost_of_rule.append(_part(bound, optimum))
    report.figure("part_of_the_optimum_under_no_flapping", under_rule)
    report.figure("part_of_the_optimum", unbound)
    report.figure("what_no_flapping_leaves_of_the_optimum", cost_of_rule)
    for name, parts in (("its plan, against the optimum under no flapping", under_rule),
                        ("its choice where nobody just moved, against the optimum", unbound)):  # fmt: skip
        report.bar(
            f"{OURS}: value of {name}, worst of {count} instances",
            want=f">= {WANT_QUALITY:.0%}",
            got=f"{min(parts):.2%}",
            ok=min(parts) >= WANT_QUALITY,
        )
    print(
        f"No flapping itself leaves {mean(cost_of_rule):.1%} of the optimum in the mean, {min(cost_of_rule):.1%} at "
        f"worst; it binds in {sum(part < 1 - 1e-9 for part in cost_of_rule)} of {count} instances."
    )


def _part(value: float, optimum: float) -> float:
    return value / optimum if optimum > 0 else 1.0


def no_flapping(picture: Snapshot, problem: horizon.Problem) -> tuple[Floats, list[int]]:
    """The rule as constraints: (values, 0 where a job would only go back; rows of jobs that may not be stopped)."""
    moves = flapping.recall(picture)
    context = ClaimContext(
        problem.jobs, problem.options, picture.now, problem.values, problem.remaining_seconds, problem.held,
        problem.restart_seconds, problem.resize_seconds,
    )  # fmt: skip
    return flapping.without_returns(moves, context), flapping.started(moves, context, problem.held)


def small_pictures(count: int) -> Iterator[tuple[Snapshot, Plan]]:
    """One out of each simulation: at most `MOST_JOBS` jobs on 4 to 16 slots of one to three types."""
    for seed in range(count):
        rng = Random(f"small/{seed}")
        sizes = {"t4": rng.choice((4, 8)), "rtx": rng.choice((0, 4)), "a100": rng.choice((0, 4))}
        where = tuple(node for kind, size in sizes.items() for node in nodes(kind, size // 4, 4))
        jobs = generated(seed, num_jobs=rng.randint(2, MOST_JOBS), mean_gap=1.0).jobs
        observed = Observed(registry.get(OURS), keep=True)
        simulate(
            workload(f"small {seed}", [replace(job, submitted_at=0.0) for job in jobs]), where, observed,
            Options(seed=seed, round_seconds=ROUND, timeline=False, max_decisions=rng.randint(1, 6)),
        )  # fmt: skip
        yield observed.pictures[-1]


def value_of(plan: Plan, problem: horizon.Problem) -> float:
    total = 0.0
    for row, job_id in enumerate(problem.job_ids):
        for kind, number in plan.targets[job_id].counts.items():
            option = problem.options.index(kind, number)
            assert option is not None, f"{job_id} got {number} of {kind}, which was no option"
            total += float(problem.values[row, option])
    return total


def milp_optimum(problem: horizon.Problem, values: Floats, must_run: Sequence[int] = ()) -> float:
    """The most that any choice is worth: a binary for each (job, type, count), at most one a job, exactly one for who
    must run, every type's slots enough. Solved by HiGHS to a gap of 1e-9, knowing nothing of how the policy searches.
    """
    rows, options = np.nonzero(values > 0)
    if not len(rows):
        return 0.0
    kinds, jobs = problem.options.kind_index[options], len(values)
    columns = np.arange(len(rows))
    matrix: Any = csr_array(
        (
            np.concatenate((np.ones(len(rows)), problem.options.counts[options])),
            (np.concatenate((rows, jobs + kinds)), np.concatenate((columns, columns))),
        ),
        shape=(jobs + len(problem.options.kinds), len(rows)),
    )
    most = np.concatenate((np.ones(jobs), problem.options.capacity))
    least = np.full(len(most), -np.inf)
    least[list(must_run)] = 1.0
    optimum = milp(
        -values[rows, options],
        integrality=np.ones(len(rows)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, least, most),
        options={"mip_rel_gap": 1e-9},
    )
    assert optimum.success, optimum.message
    return float(-optimum.fun)


if __name__ == "__main__":
    sys.exit(main())
