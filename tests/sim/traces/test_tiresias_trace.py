"""Tiresias's 60 jobs: on what they asked for, they take the time of the trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.sim.traces.tiresias_trace import RESTART_SECONDS, tiresias_workload
from tests.sim.published import published

HEAD = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"


def written(folder: Path, *rows: str) -> Path:
    (folder / "tiresias").mkdir()
    (folder / "tiresias" / "60_job.csv").write_text(HEAD + "\n".join(rows) + "\n")
    return folder


@pytest.mark.parametrize("row", ["0,1,0,606,vgg19,164,30", "1,8,30,133,vgg11,147,23", "15,1,434,3304,alexnet,180,37"])
def test_a_step_on_the_requested_slots_is_the_traced_one(tmp_path: Path, row: str) -> None:
    (job,) = tiresias_workload(written(tmp_path, row)).jobs
    slots, iterations, duration = int(row.split(",")[1]), int(row.split(",")[3]), float(row.split(",")[5])
    step, sync = job.physics.seconds("p100", (slots,), 32, 1)
    assert step * iterations == pytest.approx(duration)
    assert 0 <= sync < step
    assert job.physics.epoch_ends[-1] == iterations * job.limits.requested_batch
    assert job.physics.rescale_seconds == RESTART_SECONDS


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,one,0,606,vgg19,164,30", "line 2, column 'num_gpu': 'one' is no whole number"),
        ("0,1,0,606,vgg20,164,30", "line 2, column 'model_name': 'vgg20' is none of alexnet"),
        ("0,1,0,0,vgg19,164,30", "line 2, column 'iterations': 0 must be above zero"),
    ],
)
def test_a_malformed_row_is_refused_by_line_and_column(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        tiresias_workload(written(tmp_path, row))
    assert message in str(refused.value)


def test_the_published_file_has_sixty_jobs_of_ten_models() -> None:
    loaded = tiresias_workload(published())
    assert len(loaded.jobs) == 60
    assert len({job.task for job in loaded.jobs}) == 10
