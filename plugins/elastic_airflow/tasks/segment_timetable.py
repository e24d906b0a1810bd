"""When runs come that the platform alone starts: when the ledger, or reconciliation, says so, by nothing that
Airflow could know."""

from __future__ import annotations

from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable
from pendulum import DateTime


class ByLedger(Timetable):
    """Schedules nothing, and is no missing schedule either: a DAG without one must allow manual runs, and a run that no
    segment of the ledger stands behind would only fail."""

    periodic = False
    description = "When the ledger starts a segment"

    @property
    def summary(self) -> str:
        return "by the ledger"

    def infer_manual_data_interval(self, *, run_after: DateTime) -> DataInterval:
        return DataInterval.exact(run_after)

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        return None


class ByReconciliation(ByLedger):
    """As the ledger's: where there is one run at a time, a manual one that is due in a hundred years keeps all others
    from coming."""

    description = "When reconciliation starts a fit"

    @property
    def summary(self) -> str:
        return "by reconciliation"
