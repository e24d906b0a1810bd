"""To the same validation loss under every exchange: samples and seconds, against the exact sum, on two real tasks.

    .venv/bin/python -m benchmarks.convergence [--quick | --task digits --algorithm bytegrad | --again]

The digits CNN and the byte-level transformer of `examples`, four ranks as processes on one host, three seeds, nothing
tuned to any exchange (`trained_rank`). A run is kept under benchmarks/out/convergence with what it was made of, its
code too, so that runs may be made one at a time and one that was ended goes on; those of other code are made anew, with
`--again` all. The whole is about an hour on two cores.

The target is what the exact sum came to with every seed, and 2 %. An exchange has up to one and a half times the exact
sum's samples to come to it. Seconds are those of training on loopback, where bytes cost next to nothing: what they save
on a network is `benchmarks.communication`'s.

Bars: exchanges of gradients in two bytes and in one reach the target with every seed, in at most 1.1 times the samples
that the exact sum takes. What the others do is shown; of them nothing is promised, and nothing is on by default.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.common.kept_runs import code_of
from benchmarks.common.report import OUT, Report
from benchmarks.convergence.trained_rank import TASKS, Part
from elastic_core.comm.algorithms import NAMES
from elastic_core.domain import EXACT

KEPT = OUT / "convergence"
TRAINED = ("benchmarks.convergence.trained_rank",)
WORLD = 4
SEEDS = (0, 1, 2)
BATCHES = {"digits": 64, "bytes_lm": 32}
SAMPLES = {"digits": 30_016, "bytes_lm": 19_200}  # of an exact run
EVALUATIONS = 40  # in those
LONGER = 1.5  # times those samples, that the others may take
SLACK = 1.02  # of the loss that the exact sum came to
KEEP_THE_LOSS = ("fp16", "bf16", "bytegrad")
MOST_SAMPLES = 1.1  # times the exact sum's, of these
RUN_SECONDS = 1800.0

Curve = list[tuple[int, float, float]]  # samples, seconds, held-out loss


@dataclass(frozen=True, slots=True)
class Run:
    task: str
    algorithm: str
    seed: int

    def part(self, rank: int, rendezvous: str, shorter: int = 1) -> Part:
        """`shorter`: so many times as few samples."""
        batch, samples = BATCHES[self.task], SAMPLES[self.task] // shorter
        most = samples if self.algorithm == EXACT else int(LONGER * samples)
        return Part(
            rank=rank, world=WORLD, rendezvous=rendezvous, task=self.task, algorithm=self.algorithm, seed=self.seed,
            batch=batch, samples=samples, most=most, evaluate_every=max(1, samples // batch // EVALUATIONS),
        )  # fmt: skip


def made(run: Run, shorter: int = 1) -> Curve:
    """Trains. RuntimeError with the ranks' words where one fails."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ranks = []
        for rank in range(WORLD):
            told = json.dumps(asdict(run.part(rank, str(folder / "rendezvous"), shorter)))
            command = [sys.executable, "-m", "benchmarks.convergence.trained_rank", told]
            with (folder / f"out{rank}").open("wb") as out, (folder / f"errors{rank}").open("wb") as errors:
                ranks.append(subprocess.Popen(command, stdout=out, stderr=errors))
        try:
            codes = [process.wait(RUN_SECONDS) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        if any(codes):
            words = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("errors*")))
            raise RuntimeError(f"the ranks of {run} ended with {codes}:\n{words}")
        curve: Curve = json.loads((folder / "out0").read_text())
    return curve


def kept(run: Run, again: bool) -> Curve:
    """Of a run that was made before from the same parameters by the same code; made now, if there is none."""
    path = KEPT / f"{run.task}-{run.algorithm}-{run.seed}.json"
    of = {**asdict(run.part(0, "")), "code": code_of(TRAINED)}
    if path.exists() and not again:
        before = json.loads(path.read_text())
        if before["of"] == of:
            found: Curve = before["curve"]
            return found
    curve = made(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"of": of, "curve": curve}))
    print(f"{run}: {min(loss for _, _, loss in curve):.4f} at best, {curve[-1][1]:.0f} s", flush=True)
    return curve


def reached(curve: Curve, target: float) -> tuple[int, float] | None:
    """Samples and seconds at the first evaluation that is no worse than the target."""
    return next(((samples, seconds) for samples, seconds, loss in curve if loss <= target), None)


def judge(report: Report, task: str, curves: Mapping[str, Sequence[Curve]]) -> None:
    """`curves` by algorithm, the exact sum among them, each by seed."""
    target = SLACK * max(min(loss for _, _, loss in curve) for curve in curves[EXACT])
    exact = [found for curve in curves[EXACT] if (found := reached(curve, target)) is not None]
    samples, seconds = median(found[0] for found in exact), median(found[1] for found in exact)
    rows = []
    for algorithm, own in curves.items():
        times = [found for curve in own if (found := reached(curve, target)) is not None]
        every = len(times) == len(own)
        ratio = median(found[0] for found in times) / samples if times else float("inf")
        rows.append(
            (
                algorithm,
                f"{len(times)} of {len(own)}",
                f"{ratio:.2f}" if times else "-",
                f"{median(found[1] for found in times) / seconds:.2f}" if times else "-",
                " ".join(f"{min(loss for _, _, loss in curve):.4f}" for curve in own),
            )
        )
        if algorithm in KEEP_THE_LOSS:
            report.bar(
                f"{task}: {algorithm} to the exact sum's loss, times its samples",
                want=f"every seed, <= {MOST_SAMPLES}",
                got=f"{len(times)} of {len(own)} seeds, {ratio:.2f}",
                ok=every and ratio <= MOST_SAMPLES,
            )
    title = f"{task}: to a held-out loss of {target:.4f}, for which the exact sum takes {samples:.0f} samples"
    columns = ("", "seeds that reach it", "times its samples", "times its seconds, on loopback", "best loss by seed")
    report.table(title, columns, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="digits, one seed, four exchanges, a sixth of the samples")
    parser.add_argument("--task", choices=TASKS, help="make and keep the runs of this one only")
    parser.add_argument("--algorithm", choices=NAMES, help="and of this one")
    parser.add_argument("--again", action="store_true", help="make kept runs anew")
    chosen = parser.parse_args()
    report = Report("convergence", quick=chosen.quick)
    if chosen.quick:
        quick = {name: [made(Run("digits", name, 0), shorter=6)] for name in (EXACT, "bf16", "bytegrad", "local_sgd")}
        report.figure("digits", quick)
        judge(report, "digits", quick)
        return report.finish()
    tasks = [chosen.task] if chosen.task else list(TASKS)
    algorithms = [chosen.algorithm] if chosen.algorithm else list(NAMES)
    for task in tasks:
        curves = {name: [kept(Run(task, name, seed), chosen.again) for seed in SEEDS] for name in algorithms}
        if not chosen.algorithm:
            report.figure(task, curves)
            judge(report, task, curves)
    return 0 if chosen.task or chosen.algorithm else report.finish()


if __name__ == "__main__":
    sys.exit(main())
