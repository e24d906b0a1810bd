"""One published simulation, job by job: the quickest of those that `benchmarks.believed` repeats."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.believed import pollux_times, published_times, rank_correlation

DATA = Path(os.environ.get("ELASTIC_DATA") or "/nowhere")
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="ELASTIC_DATA names no folder of published traces")


@needs_data
def test_tiresias_ends_every_job_when_the_authors_simulator_did() -> None:
    theirs, ours = published_times("tiresias", 3), pollux_times("tiresias", 3)
    assert ours.keys() == theirs.keys()
    assert rank_correlation(ours, theirs) > 0.99
    far = {job: (theirs[job], ours[job]) for job in theirs if abs(ours[job] - theirs[job]) > 0.05 * theirs[job] + 60}
    assert len(far) <= 0.05 * len(theirs), far
