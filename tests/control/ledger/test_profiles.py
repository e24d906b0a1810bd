"""What the ledger sums up in SQL is what `snapshot.job_reports` defines."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_core.control.ledger import profiles
from elastic_core.control.ledger.database import Ledger
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import Layout, Observation
from elastic_core.snapshot import job_reports
from tests.builders import FACTS, Life, a_spec, an_observation

SECONDS = st.one_of(st.floats(1e-3, 10.0), st.sampled_from([0.0, -1.0, inf, nan]))
NOISE = st.one_of(st.none(), st.integers(1, 9).map(float), st.just(inf))
REPORTS = st.lists(
    st.fixed_dictionaries(
        {
            "num_slots": st.sampled_from([1, 2]),
            "global_batch": st.sampled_from([32, 64]),
            "step_seconds": SECONDS,
            "sync_seconds": st.floats(0.0, 1.0),
            "grad_sqr": NOISE,
            "grad_var": NOISE,
            "layout": st.sampled_from([None, Layout(data=1, tensor=2)]),
        }
    ),
    max_size=70,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reports=REPORTS)
def test_sql_sums_up_reports_as_they_are_defined_to_be(
    control: LedgerControl, reports: list[dict[str, object]]
) -> None:
    job_id = f"job-{len(control.jobs())}"
    control.submit(job_id, a_spec(slots=(1, 1)), FACTS)
    order = Life(control, control.trainer, job_id).start()
    made: list[Observation] = [an_observation(n + 1, order, **report) for n, report in enumerate(reports)]
    control.trainer(order.token).observe(made)
    ledger: Ledger = control._ledger
    in_sql = ledger.read(lambda tx: (profiles.profiles(tx, [job_id]), profiles.noise_scales(tx, [job_id])))
    assert _rounded(in_sql[0].get(job_id, ())) == _rounded(job_reports.profile(made))
    defined = job_reports.noise_scale(made)
    assert in_sql[1].get(job_id) == (None if defined is None else pytest.approx(defined))
    control.cancel(job_id, "seen")
    Life(control, control.trainer, job_id).leave(order, "stopped")


def _rounded(points: object) -> list[object]:
    assert isinstance(points, tuple)
    return [replace(p, step_seconds=round(p.step_seconds, 9), sync_seconds=round(p.sync_seconds, 9)) for p in points]
