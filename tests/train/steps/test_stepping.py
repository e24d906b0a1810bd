"""What a step says of itself."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from elastic_core.train.entry import session_task
from elastic_core.train.session import Session
from elastic_core.train.steps.segment_progress import Progress
from elastic_core.train.steps.stepping import StepResult
from tests.train.tasks import data, network

LATE_SECONDS, INTERVAL = 0.3, 3


class LateAtAverages(torch.optim.SGD):
    """The last rank comes late to every average."""

    late, steps = False, 0

    def step(self, closure=None):  # type: ignore[no-untyped-def]
        self.steps += 1
        time.sleep(LATE_SECONDS if self.late and self.steps % INTERVAL == 0 else 0.0)
        return super().step(closure)


@session_task(dataset_samples=lambda params: params["rows"])
def told(session: Session) -> None:
    """Rank 0 writes down the seconds that each step waited."""
    waits: list[float] = []
    counted = Progress.count

    def count(progress: Progress, result: StepResult) -> None:
        waits.append(result.wait_seconds)
        counted(progress, result)

    Progress.count = count  # type: ignore[method-assign]
    model = network()
    optimizer = LateAtAverages(model.parameters(), lr=0.1)
    optimizer.late = session.rank == session.world_size - 1
    model, _ = session.prepare(model, optimizer, data(session.params["rows"]))
    for x, y in session.batches():
        session.step(torch.nn.functional.mse_loss(model(x), y))
    if session.rank == 0:
        Path(session.params["file"]).write_text(json.dumps(waits))


@session_task(dataset_samples=lambda params: params["rows"])
def measured(session: Session) -> None:
    """Writes down of each step the number, whether it measured noise, and how it says that it was cut; then the
    weights."""
    steps: list[tuple[int, bool, int, int]] = []
    pieces: list[int] = []
    counted = Progress.count

    def count(progress: Progress, result: StepResult) -> None:
        steps.append((progress.step, result.noise is not None, result.local_batch, result.accumulation))
        counted(progress, result)

    Progress.count = count  # type: ignore[method-assign]
    model = network(dropout=0.0)
    model, _ = session.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3), data(session.params["rows"]))
    for x, y in session.batches():
        pieces.append(len(x))
        session.step(torch.nn.functional.mse_loss(model(x), y))
    Progress.count = counted  # type: ignore[method-assign]
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()
    Path(session.params["file"]).write_text(json.dumps({"steps": steps, "pieces": pieces, "weights": weights}))


def measured_alone(new_job: Any, tmp_path: Path, name: str, **batch: int) -> Any:
    file, spec = tmp_path / f"{name}.json", {"entry_point": f"{__name__}:measured", "batch": batch}
    params = {"rows": 64, "file": str(file)}
    job = new_job(name, entry="measured", rows=64, total=32 * 130, spec=spec, params=params)
    assert job.run(1, 32) == [0]
    return json.loads(file.read_text())


def test_one_worker_cuts_a_step_now_and_then_to_measure_the_noise_that_its_batch_waits_for(new_job, tmp_path):
    told = measured_alone(new_job, tmp_path, "grows", min=32, max=256)
    steps = told["steps"]
    assert [step for step, noise, _, _ in steps if noise] == [0, 4, 8, 12, 64, 128]
    assert {(local, accumulation) for _, _, local, accumulation in steps} == {(32, 1)}, "reported as all others are"
    assert told["pieces"][:4] == [8, 16, 8, 32]
    assert sum(told["pieces"]) == 32 * 130
    assert len(told["pieces"]) == 130 + 2 * 6

    whole = measured_alone(new_job, tmp_path, "stays", min=32, max=32)
    assert not any(noise for _, noise, _, _ in whole["steps"])
    assert set(whole["pieces"]) == {32}, "a batch that cannot grow waits for nothing"
    torch.testing.assert_close(torch.tensor(told["weights"]), torch.tensor(whole["weights"]), rtol=1e-4, atol=1e-5)


def test_a_worker_whose_steps_are_cut_anyway_measures_by_its_micro_batches(new_job, tmp_path):
    told = measured_alone(new_job, tmp_path, "cut", min=32, max=256, max_per_slot=16)
    assert set(told["pieces"]) == {16}
    assert [step for step, noise, _, _ in told["steps"] if noise] == list(range(0, 130, 4))
    assert {(local, accumulation) for _, _, local, accumulation in told["steps"]} == {(16, 2)}


def test_a_wait_within_the_optimizers_step_is_of_that_step(new_job, tmp_path):
    file = tmp_path / "waits"
    spec = {"entry_point": f"{__name__}:told", "comm": {"algorithm": "local_sgd", "interval": INTERVAL}}
    job = new_job(entry="told", rows=64, total=32 * 10, spec=spec, params={"rows": 64, "file": str(file)})
    assert job.run(2, 32) == [0, 0]
    waits = json.loads(file.read_text())
    assert len(waits) == 10
    assert [step for step, waited in enumerate(waits, 1) if waited > LATE_SECONDS / 2] == [3, 6, 9]
