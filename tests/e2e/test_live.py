"""The live benchmark's six short jobs on the real services, under the default policy: complete and correct."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.live.contenders import CONTENDERS
from benchmarks.live.live_run import problems, run
from benchmarks.live.live_workload import quick
from elastic_core.spec import ClusterSpec
from tests.e2e.platform import CLUSTER, Platform


@pytest.fixture
def eight_slots_of_two_types(platform: Platform) -> Iterator[Platform]:
    """The live benchmark's pool; afterwards the tests' own again."""
    yield platform
    platform.control.set_cluster(ClusterSpec.model_validate(CLUSTER))


def test_paced_jobs_of_five_kinds_end_right_on_two_types_under_the_default_policy(
    eight_slots_of_two_types: Platform,
) -> None:
    loaded = quick()
    assert eight_slots_of_two_types.settings.policy == CONTENDERS["horizon"].policy
    outcome = run(eight_slots_of_two_types, loaded, CONTENDERS["horizon"].specs(loaded, 0), most_seconds=900.0)
    assert problems(loaded, outcome) == []
    ran_on = {kind for job in outcome["jobs"] for segment in job["segments"] for kind in segment["slots"]}
    assert ran_on == {"t4", "a100"}
    assert any(job["resizes"] for job in outcome["jobs"]), "six jobs came and went, and nobody was resized"
    assert outcome["pauses"], "every start and resize is measured"
