"""A job runs the code that it was begun with: real ledger, launcher and workers; the project is changed under it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic_core.domain import JobState
from elastic_core.protocol.process_groups import code_of
from elastic_core.protocol.records import JobFacts
from elastic_core.spec import JobSpec
from tests.launch.airflowless import Platform, platform

pytestmark = pytest.mark.e2e

TASK = """
import time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from mine.version import VERSION

def train(session):
    model = torch.nn.Linear(2, 1)
    x = torch.ones(16, 2)
    model, _ = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), TensorDataset(x, x[:, :1]))
    with (Path(session.params["folder"]) / "ran").open("a") as file:
        for x, y in session.batches():
            session.step(torch.nn.functional.mse_loss(model(x), y))
            file.write(f"{VERSION}\\n")
            file.flush()
            time.sleep(0.02)
            if VERSION == session.params.get("fails_under"):
                raise RuntimeError(f"version {VERSION} does not work")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "__init__.py").touch()
    (folder / "mine" / "task.py").write_text(TASK)
    (folder / "mine" / "version.py").write_text("VERSION = 1\n")
    return folder


def submit(running: Platform, folder: Path, samples: int, **params: int) -> None:
    spec = JobSpec.model_validate(
        {
            "name": "mine", "entry_point": "mine.task:train", "params": {"folder": str(folder), **params},
            "work": {"samples": samples}, "batch": {"min": 8, "max": 8}, "slots": {"min": 1, "max": 1},
            "segment": {"seconds": 3600}, "checkpoints": {"interval_seconds": None, "interval_steps": 5},
        }
    )  # fmt: skip
    running.control.submit("mine", spec, JobFacts(dataset_samples=16))


def versions(folder: Path) -> list[str]:
    return (folder / "ran").read_text().split() if (folder / "ran").exists() else []


def test_an_attempt_after_the_project_was_changed_runs_what_the_first_one_ran(
    preloaded_home: Path, ledger_url: str, project: Path, tmp_path: Path
) -> None:
    with platform(preloaded_home, ledger_url, num_slots=1, project=project, tasks="mine.*") as running:
        submit(running, tmp_path, samples=480)
        running.until(lambda: len(versions(tmp_path)), lambda steps: steps > 10)
        (project / "mine" / "version.py").write_text("VERSION = 2\n")
        (project / "mine" / "task.py").write_text("raise SyntaxError('half of an edit')\n")
        os.kill(running.worker_pids("mine")[0], signal.SIGKILL)
        assert running.wait("mine").state is JobState.FINISHED
        assert running.control.segments("mine")[0].attempt == 1
        assert set(versions(tmp_path)) == {"1"}
        assert code_of(running.control.job("mine").results).packages == ("mine",)


def test_a_failed_job_that_is_revived_runs_its_code_as_it_is_then(
    preloaded_home: Path, ledger_url: str, project: Path, tmp_path: Path
) -> None:
    with platform(preloaded_home, ledger_url, num_slots=1, project=project, tasks="mine.*") as running:
        submit(running, tmp_path, samples=160, fails_under=1)
        failed = running.wait("mine")
        assert failed.state is JobState.FAILED
        assert "version 1 does not work" in (failed.error or "")
        (project / "mine" / "version.py").write_text("VERSION = 2\n")
        running.control.revive("mine")
        job = running.wait("mine")
        assert job.state is JobState.FINISHED
        assert versions(tmp_path)[-1] == "2"
        assert code_of(job.results).sha256 != code_of(failed.results).sha256
        assert any("it runs its code as that is now" in note for note in job.notes)
