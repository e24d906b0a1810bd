"""The corpus as the platform would have recorded it: `python -m benchmarks.corpus.history OUT` writes it as history.

OUT is what `elastic history import OUT` reads (docs/guide/operate.md). A run that ended because its loss was no number
any more would have failed: it counts as cut off. So does one that ended at its limit and not at its target loss or for
want of patience, by the platform's own rule.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.corpus.make import OUT
from elastic_core.domain import ProfilePoint
from elastic_core.protocol.history_runs import write_history
from elastic_core.protocol.records import FinishedRun, JobDescription
from elastic_core.snapshot.job_ends import came_to_its_end

TYPE = "cpu"


def corpus_runs(path: Path = OUT) -> Iterator[FinishedRun]:
    """In an order that says nothing of what they are, so that the latest few of them are a fair draw."""
    with gzip.open(path, "rt") as file:
        runs = [finished_run(json.loads(line)) for line in file]
    yield from sorted(runs, key=lambda run: (run.finished_at, run.job_id))


def finished_run(run: Mapping[str, Any]) -> FinishedRun:
    batch, every = run["batch"], run["report_steps"] * run["batch"]
    return FinishedRun(
        job_id=f"corpus-{run['number']:03d}",
        finished_at=float(Random(f"finished/{run['number']}").randrange(10**6)),
        description=JobDescription(
            entry_point=run["entry_point"],
            params=run["params"],
            requested_slots=1,
            requested_batch=batch,
            dataset_samples=run["dataset_samples"],
            most_samples=run["most_steps"] * batch,
            num_parameters=run["num_parameters"],
            accelerated=False,
            target_loss=run["target_loss"],
            patience=run["patience"],
        ),
        resubmitted=False,
        losses=tuple((i * every, loss) for i, loss in enumerate(run["losses"], 1) if loss is not None),
        metrics=tuple((step * batch, loss) for step, loss in run["held_out"] if loss is not None),
        work=run["steps"] * batch,
        completed=run["ended"] != "diverged" and _came_to_its_end(run),
        profile=(
            ProfilePoint(
                num_slots=1, num_nodes=1, type=TYPE, global_batch=batch, local_batch=batch, accumulation=1,
                step_seconds=run["step_seconds"], sync_seconds=0.0, count=len(run["losses"]),
            ),
        ),
    )  # fmt: skip


def _came_to_its_end(run: Mapping[str, Any]) -> bool:
    return came_to_its_end(
        end_is_known=run["target_loss"] is None and run["patience"] is None,
        at_its_limit=run["steps"] >= run["most_steps"],
        target_loss=run["target_loss"],
        last_loss=run["losses"][-1] if run["losses"] else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="file of JSON lines to write, gzipped where its name ends in .gz")
    out = parser.parse_args().out
    print(f"{write_history(corpus_runs(), out)} runs in {out}")


if __name__ == "__main__":
    main()
