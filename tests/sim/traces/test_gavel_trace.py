"""Gavel's throughputs: what was measured is what a job runs at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic_core.errors import UserError
from elastic_core.sim.traces.gavel_trace import KINDS, GavelPhysics, gavel_workload, read_families
from tests.sim.published import published


def table(**more: Any) -> dict[str, Any]:
    """One model at two batches, on one and two slots; k80 half as fast, spread over nodes half as fast again."""
    rows = {"('Net (batch size 8)', 1)": 8.0, "('Net (batch size 16)', 1)": 4.0, "('Net (batch size 8)', 2)": 10.0}
    content: dict[str, Any] = {}
    for kind, speed in (("v100", 1.0), ("p100", 0.8), ("k80", 0.5)):
        content[kind] = {key: {"null": rate * speed} for key, rate in rows.items()}
        content[f"{kind}_unconsolidated"] = {key: {"null": rate * speed / 2} for key, rate in rows.items()}
    return {**content, **more}


def written(folder: Path, content: Any) -> Path:
    path = folder / "throughputs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_steps_of_all_slots_together_become_the_time_of_one_step(tmp_path: Path) -> None:
    (net,) = read_families(written(tmp_path, table()))
    physics = GavelPhysics(net, 8, 1.0)
    assert net.batches == (8, 16)
    assert physics.seconds("v100", (1,), 8, 1) == pytest.approx((1 / 8, 0.0))
    assert physics.seconds("v100", (1,), 12, 1)[0] == pytest.approx((1 / 8 + 1 / 4) / 2), "between two batches"
    assert physics.seconds("v100", (2,), 8, 1) == pytest.approx((2 / 10, 2 / 10 - 1 / 8)), (
        "two slots, ten steps a second"
    )
    assert physics.seconds("v100", (1, 1), 8, 1)[0] == pytest.approx(2 / 5), "on two nodes"
    assert physics.seconds("k80", (1,), 8, 1)[0] == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"v100": {', "line 1, column 11: no JSON"),
        (table(v100={"Net": {"null": 1.0}}), "type 'v100': 'Net' is no pair of a model and a number of slots"),
        (table(k80={"('Net', 1)": {"null": "fast"}}), "its steps a second alone ('null') are 'fast', no number"),
        ({"v100": {}}, "no type 'p100'; it has v100"),
    ],
)
def test_a_malformed_file_is_refused_by_the_place_that_is_wrong(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UserError) as refused:
        read_families(written(tmp_path, content))
    assert message in str(refused.value)
    assert "throughputs.json" in str(refused.value)


def test_jobs_are_drawn_by_the_seed_within_what_was_measured() -> None:
    one, same, other = (gavel_workload(published(), seed) for seed in (0, 0, 1))
    drawn = [[(job.task, job.submitted_at) for job in load.jobs] for load in (one, same, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    for job in one.jobs:
        assert job.limits.requested_slots in job.limits.slot_counts
        assert set(job.limits.types) == set(KINDS)
        step, sync = job.physics.seconds("v100", (job.limits.requested_slots,), job.limits.min_batch, 1)
        seconds = job.physics.epoch_ends[-1] / job.limits.requested_batch * step
        assert 60 * 10**1.5 <= seconds <= 60 * 10**4 * 1.001
        assert 0 <= sync < step
