"""What became of a group, from what became of its parts on each node."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_core.protocol.process_groups import ExitKind, ExitReport

# What outweighs what, as among the ranks of one node: `launch.exit_classification`.
_WEIGHT = (
    ExitKind.USER_ERROR, ExitKind.DIVERGED, ExitKind.INFRASTRUCTURE, ExitKind.STOPPED, ExitKind.BOUNDARY,
    ExitKind.FINISHED,
)  # fmt: skip


def merged(reports: Sequence[ExitReport], first: ExitReport | None = None) -> ExitReport:
    """One report for the group. `reports`: of its members, by their first rank; `first`: the one that came first.

    The weightiest kind holds. Among faults of infrastructure a node that is gone, which has no exit codes, and a worker
    that a signal killed come before what followed from it on other nodes, and of alike ones what came first.
    """
    if not reports:
        return ExitReport(kind=ExitKind.INFRASTRUCTURE, error="no node had a part in the group")
    culprit = min(reports, key=lambda report: (_WEIGHT.index(report.kind), _rank_of_fault(report), report is not first))
    codes = tuple(code for report in reports for code in report.exit_codes)
    return ExitReport(kind=culprit.kind, error=culprit.error, log_tail=culprit.log_tail, exit_codes=codes)


def _rank_of_fault(report: ExitReport) -> int:
    if not report.exit_codes:
        return 0
    return 1 if any(code < 0 for code in report.exit_codes) else 2
