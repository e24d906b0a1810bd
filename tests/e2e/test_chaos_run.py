"""Real chaos, the short form: kills, stops and a store that is away, and all that is promised holds afterwards.

On a platform of its own, since its store is taken away. `python -m benchmarks.chaos` is the long form, with bars on how
long recoveries take.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.chaos.chaos_run import Chosen, chaos
from benchmarks.chaos.event_log import EventLog
from benchmarks.chaos.fault_kinds import HANG
from benchmarks.chaos.fault_plan import KILL_WORKER

SHORT = Chosen(
    minutes=1.5, seed=1, faults=9, lanes=4, job_seconds=120,
    kinds=("kill an agent", "kill postgres", "kill triggerer", "store away", "stop a worker", HANG),
    settings={"grace_seconds": 20.0},
)  # fmt: skip


def test_jobs_finish_and_read_every_sample_once_whatever_is_killed_stopped_or_taken_away(tmp_path: Path) -> None:
    outcome = chaos(SHORT, EventLog(tmp_path / "chaos.log.jsonl"))
    assert {KILL_WORKER, *SHORT.kinds} == {fault.kind for fault in outcome.faults}
    assert [job["name"] for job in outcome.jobs if not job["ended_well"]] == []
    assert [line for job in outcome.jobs for line in job["wrong"]] == []
    assert outcome.violations == []
    assert outcome.held_twice == set()
    assert outcome.orphans == []
    assert outcome.not_found == []
    assert outcome.recoveries, "no killed worker's job went on"
    assert outcome.looks > 20, "the ledger's history was hardly looked at"
