"""Profiles of reports that are read once are those of all of the latest reports (`snapshot.job_reports`)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_core.control.plane import LedgerControl
from elastic_core.control.scheduling import report_windows
from elastic_core.control.scheduling.report_windows import ReportWindows
from elastic_core.domain import Observation
from elastic_core.snapshot import job_reports
from tests.builders import FACTS, Life, a_spec, an_observation
from tests.control.ledger.test_profiles import REPORTS, rounded, store
from tests.effort import EFFORT

RECENT = 20


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_windows, "RECENT", RECENT)
    monkeypatch.setattr(job_reports, "RECENT", RECENT)


@pytest.mark.usefixtures("short_windows")
@settings(max_examples=10 * EFFORT, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(REPORTS, min_size=1, max_size=4), looks=st.lists(st.booleans(), min_size=4, max_size=4))
def test_a_profile_is_of_all_latest_reports_however_they_came(
    control: LedgerControl, batches: list[list[dict[str, object]]], looks: list[bool]
) -> None:
    """Looked at after some of the batches only, beside a job that has none."""
    job_id = f"job-{len(control.jobs())}"
    control.submit(job_id, a_spec(slots=(1, 1)), FACTS)
    order = Life(control, control.trainer, job_id).start()
    windows, ledger = ReportWindows(), control._ledger
    made: list[Observation] = []
    for batch, is_looked_at in zip(batches, looks, strict=False):
        new = [an_observation(len(made) + n + 1, order, **report) for n, report in enumerate(batch)]
        store(control, order, new)
        made += new
        if is_looked_at:
            told = ledger.read(lambda tx: windows.profiles(tx, [job_id, "job-of-nobody"]))
            assert rounded(told.get(job_id, ())) == rounded(job_reports.profile(made))
    for seen in (windows, ReportWindows()):
        told = ledger.read(lambda tx, seen=seen: seen.profiles(tx, [job_id]))  # type: ignore[misc]
        assert rounded(told.get(job_id, ())) == rounded(job_reports.profile(made))
    control.cancel(job_id, "seen")
    Life(control, control.trainer, job_id).leave(order, "stopped")


def test_a_report_is_read_once_while_its_job_is_asked_for(
    control: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.submit("job-a", a_spec(slots=(1, 1)), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    windows, ledger = ReportWindows(), control._ledger
    added: list[int] = []
    add = report_windows._Window.add
    monkeypatch.setattr(
        report_windows._Window, "add",
        lambda window, rows: (added.append(sum(len(row["ids"]) for row in rows)), add(window, rows)),
    )  # fmt: skip
    for step in range(1, 4):
        control.trainer(order.token).observe([an_observation(step, order)])
        (point,) = ledger.read(lambda tx: windows.profiles(tx, ["job-a"]))["job-a"]
        assert point.count == job_reports.shown_count(step)
    assert added == [1, 1, 1]
    assert ledger.read(lambda tx: windows.profiles(tx, [])) == {}
    assert ledger.read(lambda tx: windows.profiles(tx, ["job-a"]))["job-a"] == (point,)
    assert added == [1, 1, 1, 3], "it was forgotten"


@pytest.mark.usefixtures("short_windows")
def test_of_configurations_that_no_kept_report_has_nothing_is_kept(control: LedgerControl) -> None:
    """However many a job's own code says that it cuts its batch in."""
    control.submit("job-a", a_spec(slots=(1, 1)), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    windows, ledger = ReportWindows(), control._ledger
    for first in range(1, 6 * RECENT, RECENT):
        control.trainer(order.token).observe(
            [an_observation(step, order, accumulation=step) for step in range(first, first + RECENT)]
        )
        told = ledger.read(lambda tx: windows.profiles(tx, ["job-a"]))["job-a"]
        assert [point.accumulation for point in told] == list(range(first, first + RECENT))
    (window,) = windows._windows.values()
    assert len(window.numbers) == len(window.points) == RECENT


def test_a_profile_is_of_a_bounded_number_of_configurations_those_that_were_reported_most(
    control: LedgerControl,
) -> None:
    control.submit("job-a", a_spec(slots=(1, 1)), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    most = job_reports.MOST_CONFIGURATIONS
    cuts = [*range(1, most + 21), *range(most + 1, most + 21)]  # the last twenty twice
    made = [an_observation(step, order, accumulation=cut) for step, cut in enumerate(cuts)]
    control.trainer(order.token).observe(made)
    told = control._ledger.read(lambda tx: ReportWindows().profiles(tx, ["job-a"]))["job-a"]
    assert told == job_reports.profile(made)
    assert [point.accumulation for point in told] == [*range(1, most - 19), *range(most + 1, most + 21)]
