"""A job on slots of two types at once: planned, granted, started, resized, killed and finished by a real ledger, API,
agents and workers, with the losses of one process that nobody disturbs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from elastic_core.domain import JobState
from elastic_core.spec import ClusterSpec, JobSpec
from elastic_core.train.entry import job_facts
from examples.paced_ctr import PROFILES
from tests.launch.airflowless import Platform, platform
from tests.train import tasks
from tests.train.conftest import new_job

__all__ = ["new_job"]

pytestmark = pytest.mark.e2e

JOB, BATCH, STEPS = "clicks", 64, 60
SMALL = {"categories": 3, "rows": 101, "dim": 4, "width": 8, "depth": 2, "samples": 640}


def of_slots(cpus: int) -> ClusterSpec:
    return ClusterSpec.model_validate(
        {
            "nodes": [
                {"name": "cpus", "type": "cpu", "slots": cpus, "price_per_slot_hour": 0.04},
                {"name": "paced", "type": "paced-t4", "slots": 1, "price_per_slot_hour": 0.35},
            ]
        }
    )


def spec_of(folder: Path) -> JobSpec:
    profile: dict[str, Any] = json.loads((PROFILES / "paced-ctr.json").read_text())
    traits = [{k: v for k, v in kind.items() if k not in ("price", "units")} for kind in profile["types"]]
    return JobSpec.model_validate(
        {
            "name": JOB,
            "entry_point": "tests.train.tasks:clicks",
            "params": {**SMALL, "folder": str(folder), "sleep": 0.005},
            "work": {"samples": BATCH * STEPS},
            "batch": {"min": BATCH, "max": BATCH},
            "slots": {"min": 1, "max": 8},
            "placement": "exact",
            "placement_profile": {"batch": profile["batch"], "layers": profile["layers"], "types": traits},
            "segment": {"seconds": 3600},
            "checkpoints": {"interval_seconds": None},
            "audit": "full",
            "seed": 11,
        }
    )


@pytest.fixture
def running(preloaded_home: Path, ledger_url: str) -> Iterator[Platform]:
    with platform(preloaded_home, ledger_url, policy="horizon") as found:
        found.control.set_cluster(of_slots(4))
        yield found


def stages(running: Platform) -> list[str]:
    allocation = running.running(JOB).allocation
    assert allocation is not None
    return [str(stage) for stage in allocation.stages]


@pytest.mark.nightly
def test_a_job_is_placed_resized_killed_and_finished_as_if_nothing_had_happened(running: Platform, new_job) -> None:
    folder = running.home / JOB
    folder.mkdir()
    spec = spec_of(folder)
    running.control.submit(JOB, spec, job_facts(tasks.clicks, spec))
    assert stages(running) == ["layer 0 on 4 cpu", "layers 1 to 4 on 1 paced-t4"]
    running.until_step(JOB, 5)
    running.control.set_cluster(of_slots(2))
    running.until(lambda: stages(running), lambda found: found == ["layer 0 on 2 cpu", "layers 1 to 4 on 1 paced-t4"])
    running.until_step(JOB, max(running.curve(JOB)) + 5)
    os.kill(running.worker_pids(JOB)[0], signal.SIGKILL)
    assert running.wait(JOB, 180).state is JobState.FINISHED, running.logs()

    alone = new_job("alone", entry="clicks", rows=640, total=BATCH * STEPS, params=SMALL, spec=_of_batch(spec))
    assert alone.run(1, BATCH) == [0]
    wanted, found = (
        {step: float.fromhex(loss) for step, loss in curve.items()} for curve in (alone.curve(), running.curve(JOB))
    )
    assert found == pytest.approx(wanted, rel=1e-6)


def _of_batch(spec: JobSpec) -> Mapping[str, Any]:
    return {"batch": {"min": spec.batch.min, "max": spec.batch.max}}
