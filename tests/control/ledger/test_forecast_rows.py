"""Forecasts in the ledger: a bounded number of each job, spread over its life."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from elastic_core.control.ledger import forecast_rows
from elastic_core.control.ledger.forecast_rows import MOST, superfluous
from elastic_core.control.plane import LedgerControl
from elastic_core.protocol.forecasts import DECLARED, Assumption, Forecast
from tests.builders import FACTS, a_spec

WAITING = Forecast(
    at=0.0, lineage=0, done=0.0, work_left=(1.0, 1.0, 1.0), work_source=DECLARED, finish_at=None, assumes=None,
    finish_source="", policy="fair_share", decision_id=1,
)  # fmt: skip


def running(done: float) -> Forecast:
    return replace(WAITING, done=done, finish_at=(1.0, 2.0, 3.0), assumes=Assumption.KEEPS_SLOTS)


QUEUED = replace(WAITING, finish_at=(1.0, 2.0, 3.0), assumes=Assumption.WAITS_ITS_TURN)


def after_many(forecasts: list[Forecast]) -> list[Forecast]:
    """Kept one after the other, as decisions do."""
    kept: list[Forecast] = []
    for forecast in forecasts:
        kept.append(forecast)
        for place in superfluous(kept, len(kept) - MOST):
            del kept[place]
    return kept


def test_over_a_long_life_what_is_kept_lies_evenly_over_the_logarithm_of_the_work() -> None:
    kept = after_many([WAITING] * 100 + [running(100.0 * step) for step in range(5000)])
    assert len(kept) == MOST
    work = [forecast.done for forecast in kept if forecast.done >= 100.0]
    assert max(later / earlier for earlier, later in pairwise(work)) <= 2.0
    for share in (0.25, 0.5, 0.75):
        near = max(done for done in work if done <= share * work[-1])
        assert near >= 0.75 * share * work[-1]


SOME = st.one_of(st.sampled_from([WAITING, QUEUED]), st.integers(0, 10**9).map(lambda n: running(float(n))))


@given(
    st.lists(SOME, min_size=3).map(lambda forecasts: sorted(forecasts, key=lambda f: f.done)),
    st.integers(1, 5),
)
def test_the_first_of_each_assumption_and_the_last_always_stay(forecasts: list[Forecast], number: int) -> None:
    gone = superfluous(forecasts, number)
    assumed = [forecast.assumes for forecast in forecasts]
    assert not {0, *map(assumed.index, set(assumed)), len(forecasts) - 1} & set(gone)
    assert len(set(gone)) == len(gone) <= number


def test_a_job_keeps_no_more_than_so_many_in_the_ledger(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    control.submit("job-b", a_spec("other"), FACTS)
    for step in range(MOST + 10):
        done = 100.0 * step
        control._ledger.write(lambda tx, done=done: forecast_rows.add(tx, {"job-a": running(done)}))  # type: ignore[misc]
    control._ledger.write(lambda tx: forecast_rows.add(tx, {"job-b": WAITING}))
    kept = control.forecasts("job-a")
    assert len(kept) == MOST
    assert [kept[0].done, kept[-1].done] == [0.0, 100.0 * (MOST + 9)]
    assert control.forecasts("job-b") == [WAITING]
