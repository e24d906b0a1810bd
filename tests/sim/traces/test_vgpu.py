"""The loader of AITurbo's measured jobs: what it refuses, and that steps are physical wherever they are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.sim.traces.published_traces import data_folder
from elastic_core.sim.traces.vgpu import (
    GRID,
    MAX_SERVERS,
    MAX_WORKERS,
    Tables,
    load_tables,
    published_seconds,
    read_coefficients,
    read_jobs,
    server_physics,
)

HEADER = "id\tmodel_name\tbatch_size\ttotal_steps\tarrive_time\tps_num\tworker_num\tcpu_core_worker\tcpu_core_ps"
# Seconds: 0.01 a sample and 0.1, then 0.05 w/p + 0.15 w/p, 0.02 w + 0.01 w, and a server is said to save 0.05.
THETA = (0.01, 0.1, 0.05, 0.15, 0.02, -0.05, 0.01)
TABLES = Tables(
    speed={"net": THETA}, server_cpu={"net": (-8.0, 2.0, 9.0)}, forward={"net": (3.0, 3.0, 0.0)},
    backward={"net": (3.0, 3.0, 0.0)},
)  # fmt: skip


def written(folder: Path, text: str) -> Path:
    path = folder / "file.txt"
    path.write_text(text)
    return path


def test_coefficients_are_read_whatever_separates_them(tmp_path: Path) -> None:
    assert read_coefficients(written(tmp_path, "vgg\t1.5\t-2\nnet 3 4e-1\n"), 2) == {
        "vgg": (1.5, -2.0),
        "net": (3.0, 0.4),
    }


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("net 1 2\nvgg 1 x\n", "line 2, column '3': 'x' is no number"),
        ("net 1\n", "line 1: 2 columns; it needs a model and 2 coefficients"),
    ],
)
def test_a_malformed_table_names_file_line_and_column(tmp_path: Path, text: str, what: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError, match=what) as caught:
        read_coefficients(path, 2)
    assert str(path) in str(caught.value)


def test_a_job_is_read_with_what_its_user_asked_for(tmp_path: Path) -> None:
    (job,) = read_jobs(written(tmp_path, f"{HEADER}\n7\tnet\t32\t100\t12\t3\t2\t5\t4\n"), TABLES).jobs
    assert (job.job_id, job.task, job.submitted_at, job.physics.epoch_ends) == ("job-007", "net", 12.0, (3200.0,))
    servers = job.limits.servers
    assert servers is not None
    assert (servers.requested_workers, servers.requested_servers) == (2, 3)
    assert (servers.worker_cores, servers.requested_server_cores) == (5, 4)
    assert (job.limits.min_batch, job.limits.max_batch) == (32, 32)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("7\tnet\t32\tmany\t12\t3\t2\t5\t4", "line 2, column 'total_steps': 'many' is no whole number"),
        ("7\tother\t32\t100\t12\t3\t2\t5\t4", "line 2, column 'model_name': 'other' is none of net"),
        ("7\tnet\t32", "line 2: 3 columns, the first line names 9"),
    ],
)
def test_a_malformed_job_names_line_and_column(tmp_path: Path, row: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        read_jobs(written(tmp_path, f"{HEADER}\n{row}\n"), TABLES)


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 1: no column 'ps_num'"):
        read_jobs(written(tmp_path, HEADER.replace("ps_num", "servers") + "\n"), TABLES)
    with pytest.raises(UserError, match="is empty"):
        read_jobs(written(tmp_path, ""), TABLES)


def physics_seconds(model: str, batch: int, workers: int, servers: int, tables: Tables) -> float:
    physics = server_physics(model, batch, 100, tables)
    counts, roles = {"gpu": workers, "cpu": 5 * (workers + servers)}, (("server", servers), ("worker", workers))
    return physics.role_seconds(counts, roles, batch)[0]


def test_where_the_published_form_is_physical_it_is_what_is_simulated() -> None:
    """Up to the weak prior and the saving by each server, which no non-negative form has."""
    plain = Tables({"net": (*THETA[:5], 0.0, THETA[6])}, TABLES.server_cpu, TABLES.forward, TABLES.backward)
    for workers, servers in GRID:
        published = published_seconds(plain.speed["net"], 32, workers, servers)
        assert physics_seconds("net", 32, workers, servers, plain) == pytest.approx(published, rel=0.06)


def test_steps_stay_positive_where_the_published_form_does_not() -> None:
    assert published_seconds(THETA, 32, 1, 20) < 0
    for servers in (1, 4, 10, 20):
        assert physics_seconds("net", 32, 1, servers, TABLES) > 0.1


def test_the_published_jobs_are_those_of_the_paper() -> None:
    try:
        folder = data_folder() / "aiturbo" / "vgpu-systemData"
    except UserError as error:
        pytest.skip(str(error))
    tables = load_tables(folder)
    jobs = read_jobs(folder / "60jobs.txt", tables).jobs
    assert len(jobs) == 60
    assert {job.task for job in jobs} <= set(tables.speed)
    for model in {job.task for job in jobs}:
        times = {
            (w, p): physics_seconds(model, 64, w, p, tables)
            for w in range(1, MAX_WORKERS + 1)
            for p in range(1, MAX_SERVERS + 1)
        }
        assert all(seconds > 0 for seconds in times.values())
        assert max(times.values()) / min(times.values()) < 30
