"""Which tests one process of `--dist loadfile` runs one after another: a file's, and those of all files that share what
is slow to start, MLflow or chromium."""

from __future__ import annotations

from xdist.scheduler.loadfile import LoadFileScheduling

FOLDERS = ("tests/airflow/page/", "tests/track/")


class BySlowStarts(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return "slow starts" if nodeid.startswith(FOLDERS) else str(super()._split_scope(nodeid))
