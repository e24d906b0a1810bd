"""One published simulation, job by job: the quickest of those that `benchmarks.believed` repeats."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.believed import AS_PUBLISHED, completion_times, no_model, published_times, rank_correlation
from elastic_core.policy.tiresias import Tiresias
from elastic_core.sim import traces
from elastic_core.sim.engine import simulate

DATA = Path(os.environ.get("ELASTIC_DATA") or "/nowhere")
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="ELASTIC_DATA names no folder of published traces")


@needs_data
def test_tiresias_ends_every_job_when_the_authors_simulator_did() -> None:
    path = DATA / "pollux-osdi21" / "workloads" / "workloads" / "workload-3.csv"
    theirs = published_times(DATA, "tiresias")["workload-3"]
    workload = traces.pollux_workload(DATA, path)
    ours = completion_times(simulate(workload, traces.SIXTEEN_T4_NODES, Tiresias(), AS_PUBLISHED, fit=no_model))
    assert ours.keys() == theirs.keys()
    assert rank_correlation(ours, theirs) > 0.99
    far = {job: (theirs[job], ours[job]) for job in theirs if abs(ours[job] - theirs[job]) > 0.05 * theirs[job] + 60}
    assert len(far) <= 0.05 * len(theirs), far
