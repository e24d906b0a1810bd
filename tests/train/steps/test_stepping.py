"""What a step says of itself."""

from __future__ import annotations

import json
import time
from pathlib import Path

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


def test_a_wait_within_the_optimizers_step_is_of_that_step(new_job, tmp_path):
    file = tmp_path / "waits"
    spec = {"entry_point": f"{__name__}:told", "comm": {"algorithm": "local_sgd", "interval": INTERVAL}}
    job = new_job(entry="told", rows=64, total=32 * 10, spec=spec, params={"rows": 64, "file": str(file)})
    assert job.run(2, 32) == [0, 0]
    waits = json.loads(file.read_text())
    assert len(waits) == 10
    assert [step for step, waited in enumerate(waits, 1) if waited > LATE_SECONDS / 2] == [3, 6, 9]
