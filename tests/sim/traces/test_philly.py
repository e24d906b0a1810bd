"""Philly's jobs: the trace's arrivals, sizes and lengths; models by the seed."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.policy import registry
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.ground_truth.workload import Workload, nodes
from elastic_core.sim.traces.philly import KIND, MODELS, philly_workload
from elastic_core.sim.workloads.catalogue import first
from tests.sim.published import published


@pytest.fixture(scope="module")
def beginning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder with the trace's first 400 rows only."""
    data, folder = published(), tmp_path_factory.mktemp("data")
    (folder / "sia-sosp23").symlink_to(data / "sia-sosp23")
    (folder / "philly-derived").mkdir()
    with (data / "philly-derived" / "philly.csv").open() as rows:
        (folder / "philly-derived" / "philly.csv").write_text("".join(islice(rows, 401)))
    return folder


def test_every_job_of_the_trace_is_there_in_order() -> None:
    jobs = philly_workload(published(), 0).jobs
    assert len(jobs) == 82_247
    assert jobs[0].submitted_at == 0.0
    assert all(a.submitted_at <= b.submitted_at for a, b in pairwise(jobs))
    asked = Counter(job.limits.requested_slots for job in jobs)
    assert (asked[1], asked[8], asked[128]) == (76_627, 1_643, 3)


def test_models_are_drawn_by_the_seed_and_the_notes_say_so(beginning: Path) -> None:
    first, again, other = (philly_workload(beginning, seed) for seed in (0, 0, 1))
    assert {job.task for job in first.jobs} == set(MODELS)
    assert [job.task for job in again.jobs] == [job.task for job in first.jobs]
    assert [job.task for job in other.jobs] != [job.task for job in first.jobs]
    assert any("drawn at random by the seed" in note for note in first.notes)


def test_a_job_alone_on_what_it_asked_for_takes_its_traced_time(beginning: Path) -> None:
    for job in philly_workload(beginning, 0).jobs[:30]:
        alone = Workload(name="alone", jobs=(job,))
        result = simulate(alone, nodes(KIND, 4, 8), registry.get("fixed"), Options(noise=0.0, timeline=False))
        (seconds,) = result.completion_times()
        traced = seconds - job.physics.rescale_seconds
        assert traced == pytest.approx(round(traced), abs=1e-3), "durations of the trace are whole seconds"


def test_no_model_is_fitted_while_it_is_replayed(beginning: Path) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a model was fitted")

    few = first(philly_workload(beginning, 0), 40)
    assert simulate(few, nodes(KIND, 16, 8), registry.get("srtf"), fit=never).complete


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("yesterday,66.0,1,66.0,a", "line 2, column 'timestamp': 'yesterday'"),
        ("2017-10-09 07:01:55,-1,1,66.0,a", "line 2, column 'duration': '-1'"),
        ("2017-10-09 07:01:55,66,1000,66.0,a", "line 2, column 'num_gpus': '1000'"),
    ],
)
def test_a_malformed_row_is_refused_by_file_line_and_column(tmp_path: Path, row: str, message: str) -> None:
    (tmp_path / "philly-derived").mkdir()
    file = tmp_path / "philly-derived" / "philly.csv"
    file.write_text(f"timestamp,duration,num_gpus,gpu_time,cluster\n{row}\n")
    with pytest.raises(UserError) as refused:
        philly_workload(tmp_path, 0)
    assert f"{file}, {message}" in str(refused.value)
