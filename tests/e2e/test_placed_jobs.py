"""A job whose layers lie on two types at once, by the default policy on the real services: decided, trained, resized
for another job, shown with what was predicted and measured, and done with every sample read once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_core.protocol.records import JobStatus
from elastic_core.spec import parse_cluster_spec
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.data.audit import prove
from examples.paced_ctr import profile_of_size
from tests.e2e.platform import CLUSTER, Platform, eventually
from tests.e2e.test_main_line import a_job, finished, job_of, start, trains
from tests.e2e.test_user_actions import page

SIZE = 0.1  # of the profile's times
DATASET = 20_480
WORK = 6 * DATASET
ACCELERATOR = "paced-t4"


@pytest.fixture
def priced_pool(platform: Platform) -> Iterator[None]:
    """The shared pool with prices, and a node of two paced accelerators."""
    nodes = [{**node, "price_per_slot_hour": 0.04} for node in CLUSTER["nodes"]]
    nodes.append({"name": "accelerators", "type": ACCELERATOR, "slots": 2, "price_per_slot_hour": 0.35})
    platform.control.set_cluster(parse_cluster_spec({"nodes": nodes}))
    yield
    platform.control.set_cluster(parse_cluster_spec(CLUSTER))


def scaled_profile(folder: Path) -> Path:
    """The example's, as fast as the job is told to be."""
    path = folder / "profile.json"
    path.write_text(json.dumps(profile_of_size(SIZE)))
    return path


def placed_spec() -> dict[str, Any]:
    return {
        "name": "placed", "entry_point": "examples.paced_ctr:PacedCTR",
        "params": {"samples": DATASET, "size": SIZE}, "work": {"samples": WORK}, "batch": {"min": 512, "max": 512},
        "slots": {"min": 1, "max": 6}, "segment": {"seconds": 600}, "audit": "full", "placement": "exact",
    }  # fmt: skip


def holds_both(platform: Platform, least: int = 1) -> JobStatus | None:
    job = job_of(platform, "placed")
    if job is None or job.allocation is None or trains(platform, "placed") is None:
        return None
    counts = job.allocation.counts()
    return job if counts.get("cpu", 0) >= 1 and counts.get(ACCELERATOR, 0) >= least else None


@pytest.mark.usefixtures("priced_pool")
def test_a_job_trains_on_two_types_at_once_makes_room_and_reads_everything_once(
    platform: Platform, tmp_path: Path
) -> None:
    spec, profile = tmp_path / "spec.json", scaled_profile(tmp_path)
    spec.write_text(json.dumps(placed_spec()))
    estimated = platform.elastic("jobs", "estimate", str(spec), "--placement-profile", str(profile)).stdout
    assert "above the cheapest as fast" in estimated
    platform.elastic("jobs", "submit", str(spec), "--placement-profile", str(profile), "--id", "placed")
    first = eventually(lambda: holds_both(platform), 120, "the placed job trains on both types")
    assert first.allocation.stages[0].type == "cpu"
    assert first.allocation.stages[-1].type == ACCELERATOR
    measured = eventually(lambda: platform.control.snapshot().jobs[0].placed_speeds, 60, "its stages are measured")
    assert measured[0].stages == first.allocation.stages
    shown = next(job for job in page(platform)["jobs"] if job["job_id"] == "placed")
    assert ACCELERATOR in shown["stages"]
    assert "samples/s predicted" in shown["placement"]
    told = platform.elastic("jobs", "show", "placed").stdout
    assert "measured" in told
    assert "a million samples predicted" in told

    rival = a_job("rival", samples=2_000, slots=(1, 1), priority=50)
    rival["slots"]["types"] = [ACCELERATOR]
    before = first.allocation.counts()[ACCELERATOR]
    start(platform, rival)
    eventually(lambda: trains(platform, "rival"), 120, "the rival trains on an accelerator")
    if before == 2:
        moved = job_of(platform, "placed")
        assert moved is not None
        assert moved.allocation is None or moved.allocation.counts().get(ACCELERATOR, 0) <= 1
    finished(platform, "rival")
    done = finished(platform, "placed", seconds=400)
    assert done.done_samples == WORK
    verdicts = prove(platform.control.reads("placed"), DATASET, open_store(platform.settings.store_url()))
    assert [verdict for verdict in verdicts if verdict.proven is False] == []
    assert {segment.attempt for segment in platform.control.segments("placed")} == {0}, "no attempt was lost"
    assert done.spent > 0
