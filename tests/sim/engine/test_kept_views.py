"""What is kept between decisions for speed is what would have been built anew."""

from __future__ import annotations

import pytest

from elastic_core.domain import JobView
from elastic_core.policy import registry
from elastic_core.predict.speed.fit import job_models
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.engine.running import Fit, Running
from elastic_core.sim.ground_truth.workload import nodes
from elastic_core.sim.workloads.generated_jobs import generated
from elastic_core.snapshot.job_record import job_view


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", ["fair_share", "elastic_batch", "srtf"])
@pytest.mark.parametrize("round_seconds", [None, 300.0])
def test_a_kept_view_is_the_view_of_the_moment(
    policy: str, round_seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, compared = Running.view, []

    def checked(self: Running, *, declared: bool, fit: Fit | None = None) -> JobView:
        found = kept(self, declared=declared, fit=fit)
        assert found == job_view(self.record(declared=declared, fit=fit))
        assert found.throughput == (job_models(found.profile, found.limits) if found.profile else None)
        compared.append(found)
        return found

    monkeypatch.setattr(Running, "view", checked)
    tight = nodes("t4", 2, 4)
    simulate(generated(5, num_jobs=14), tight, registry.get(policy), Options(round_seconds=round_seconds))
    waiting = [view for view in compared if view.allocation is None]
    assert len(waiting) < len(compared)
    if policy == "srtf":
        assert any(view.last_batch is not None for view in waiting), "some had to let go of their slots"
