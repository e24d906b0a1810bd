"""Trains the corpus: `python -m benchmarks.corpus.make [--runs N] [--out FILE]`, about 1 s of a core a run.

Every run is drawn from its number alone: family, parameters, batch, seed, the most it may take, and how it ends: at a
target loss, by patience on the held-out loss, or at the most. The first `BOLD_RUNS` have learning rates and noise in
the labels of any size, the others are cautious: small learning rates, hardly any noise, larger batches, as who knows
the task would submit it. Bytes, whose steps take ten times the others', has no cautious runs. Each run is trained for
real, in the platform's data order, and what a job of the platform would have reported is kept: mean training losses of
equal stretches, held-out losses at every sixteenth of the most, seconds of a step. Resumable: runs that the file holds
are passed over.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks.corpus.families import FAMILIES, Family, FamilyParams
from elastic_core.state.order.sample_order import batch_indices

BOLD_RUNS = 390
RUNS = BOLD_RUNS + 552  # 46 cautious ones of each family but Bytes
OUT = Path(__file__).with_name("runs.jsonl.gz")
REPORTS = 160  # of a run, at most
EVALUATIONS = 16
SMOOTHED = 20  # steps over which the platform averages a loss that has a target
MOST_STEPS = 2400
FACTORS = {"sgd": 30.0, "momentum": 5.0, "adam": 1.0}  # of the learning rate
TARGETS = {  # what users of each family would call good enough, or hope for
    "Digits": (0.5, 0.2, 0.05), "BreastCancer": (0.3, 0.1, 0.03), "Wine": (0.3, 0.1, 0.02),
    "Diabetes": (0.6, 0.5, 0.4), "Friedman": (0.3, 0.1, 0.05), "Shapes": (0.8, 0.4, 0.15),
    "Autoencoder": (0.06, 0.03, 0.02), "Ratings": (0.7, 0.4, 0.15), "Sines": (0.5, 0.1, 0.03),
    "Parity": (0.6, 0.3, 0.1), "ModularAddition": (2.0, 1.0, 0.2), "Adversary": (1.2, 0.9, 0.75),
    "Bytes": (3.0, 2.6, 2.3),
}  # fmt: skip


def drawn(number: int) -> dict[str, Any]:
    """What run `number` is: the same on every machine."""
    return _bold(number) if number < BOLD_RUNS else _cautious(number)


def _bold(number: int) -> dict[str, Any]:
    rng = Random(f"corpus/{number}")
    names = sorted(FAMILIES)
    name = names[number % len(names)]
    optimizer = rng.choice(("sgd", "momentum", "adam", "adam"))
    rate = math.exp(rng.uniform(math.log(3e-4), math.log(1e-2)))
    params = FamilyParams(
        width=rng.choice((8, 16, 32, 64)), depth=rng.choice((0, 1, 1, 2)),
        learning_rate=float(f"{rate * FACTORS[optimizer]:.2g}"), optimizer=optimizer,
        weight_decay=rng.choice((0.0, 0.0, 0.01, 0.1)), noise=rng.choice((0.0, 0.0, 0.1, 0.3)),
    )  # fmt: skip
    ends = rng.choice(("target", "target", "patience", "most"))
    return {
        "number": number, "family": name, "entry_point": f"benchmarks.corpus.families:{name}",
        "params": params.model_dump(), "batch": rng.choice((16, 32, 64, 128)), "seed": rng.randrange(1000),
        "most_steps": round(math.exp(rng.uniform(math.log(400), math.log(MOST_STEPS)))), "ends": ends,
        "target_loss": rng.choice(TARGETS[name]) if ends == "target" else None,
        "patience": rng.choice((2, 3)) if ends == "patience" else None,
    }  # fmt: skip


def _cautious(number: int) -> dict[str, Any]:
    rng = Random(f"corpus/cautious/{number}")
    names = sorted(name for name in FAMILIES if name != "Bytes")
    name = names[(number - BOLD_RUNS) % len(names)]
    optimizer = rng.choice(("sgd", "momentum", "adam", "adam"))
    rate = math.exp(rng.uniform(math.log(3e-5), math.log(1e-3)))
    params = FamilyParams(
        width=rng.choice((16, 32, 64)), depth=rng.choice((0, 1, 1, 2)),
        learning_rate=float(f"{rate * FACTORS[optimizer]:.2g}"), optimizer=optimizer,
        weight_decay=rng.choice((0.0, 0.0, 0.01)), noise=rng.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.1)),
    )  # fmt: skip
    ends = rng.choice(("target", "patience", "most"))
    return {
        "number": number, "family": name, "entry_point": f"benchmarks.corpus.families:{name}",
        "params": params.model_dump(), "batch": rng.choice((64, 128, 256)), "seed": rng.randrange(1000),
        "most_steps": round(math.exp(rng.uniform(math.log(200), math.log(800)))), "ends": ends,
        "target_loss": rng.choice(TARGETS[name]) if ends == "target" else None,
        "patience": rng.choice((2, 3)) if ends == "patience" else None,
    }  # fmt: skip


class _End:
    """Has the run come to its end? By the smoothed training loss or by the held-out ones."""

    def __init__(self, run: dict[str, Any]) -> None:
        self._target, self._patience = run["target_loss"], run["patience"]
        self._losses: list[float] = []

    def stepped(self, loss: float) -> bool:
        self._losses = [*self._losses[1 - SMOOTHED :], loss]
        smoothed = sum(self._losses) / len(self._losses)
        return self._target is not None and len(self._losses) == SMOOTHED and smoothed <= self._target

    def evaluated(self, held_out: list[list[float]]) -> bool:
        if self._patience is None or len(held_out) <= self._patience:
            return False
        metrics = [metric for _, metric in held_out]
        return min(metrics[-self._patience :]) >= min(metrics[: -self._patience])


def train(run: dict[str, Any]) -> dict[str, Any]:
    """The run with its outcome: `losses` (means of `report_steps` each), `held_out`, `steps`, `ended`, ..."""
    torch.manual_seed(run["seed"])
    task: Family = FAMILIES[run["family"]](FamilyParams(**run["params"]))
    model = task.model()
    optimizer, data, end = task.optimizer(model), task.dataset(), _End(run)
    evaluate_every = max(run["most_steps"] // EVALUATIONS, 1)
    losses: list[float] = []
    held_out: list[list[float]] = []
    ended, started, evaluating, step = "most", time.perf_counter(), 0.0, 0
    for step in range(1, run["most_steps"] + 1):
        rows = batch_indices(run["seed"], len(data), (step - 1) * run["batch"], run["batch"])
        loss = task.loss(model, [tensor[rows] for tensor in data.tensors])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        losses.append(value)
        if end.stepped(value):
            ended = "target"
            break
        if step % evaluate_every == 0:
            before = time.perf_counter()
            held_out.append([step, task.evaluate(model)["held_out_loss"]])
            evaluating += time.perf_counter() - before
            if end.evaluated(held_out):
                ended = "patience"
                break
        if not math.isfinite(value):
            ended = "diverged"
            break
    seconds = (time.perf_counter() - started - evaluating) / step
    every = math.ceil(step / REPORTS)
    reports = [sum(losses[at : at + every]) / every for at in range(0, step - every + 1, every)]
    return {
        **run, "dataset_samples": len(data), "num_parameters": sum(p.numel() for p in model.parameters()),
        "report_steps": every, "steps": step, "ended": ended, "step_seconds": float(f"{seconds:.3g}"),
        "losses": [_short(loss) for loss in reports], "held_out": [[at, _short(loss)] for at, loss in held_out],
    }  # fmt: skip


def _short(loss: float) -> float | None:
    return float(f"{loss:.5g}") if math.isfinite(loss) else None


def _numbers(out: Path) -> Iterator[int]:
    if out.exists():
        with gzip.open(out, "rt") as file:
            for line in file:
                yield json.loads(line)["number"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    done = set(_numbers(options.out))
    for number in range(options.runs):
        if number in done:
            continue
        run = train(drawn(number))
        with gzip.open(options.out, "at") as file:
            file.write(json.dumps(run, separators=(",", ":")) + "\n")
        print(f"{number:4} {run['family']:16} {run['ended']:8} after {run['steps']} of {run['most_steps']} steps, "
              f"loss {run['losses'][-1:]}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
