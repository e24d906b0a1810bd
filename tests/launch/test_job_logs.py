from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.errors import NotFound
from elastic_core.host.messages import AgentProcess, WorkersByRank
from elastic_core.host.rundir import RunDir
from elastic_core.launch.job_logs import read_job_log
from elastic_core.launch.launcher import Launcher
from elastic_core.launch.local import LocalLauncher
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from elastic_core.protocol.records import JobGroup
from tests.builders import settings
from tests.launch.builders import order, scripted, wait_until_dead


def a_job_group(origin_epoch: int, ended: bool = True) -> JobGroup:
    end = 20.0 if ended else None
    return JobGroup(origin_epoch=origin_epoch, first_segment=0, last_segment=2, started_at=10.0, ended_at=end)


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """A host that knows two groups: one that has ended, in which worker 1 was rank 0 last, and one that goes on."""
    ended, lives = (RunDir.of(tmp_path, epoch) for epoch in (3, 9))
    for folder in (ended, lives):
        folder.create()
        for rank in (0, 1):
            folder.log(rank).write_text(f"worker {rank} of {folder.path.name}\n")
    ended.write(WorkersByRank((1,)))
    ended.write_exit(ExitReport(kind=ExitKind.USER_ERROR))
    return LocalLauncher(settings(tmp_path))


GROUPS = [a_job_group(3), a_job_group(9, ended=False)]


def test_it_is_the_newest_attempt_unless_another_is_asked_for(launcher: Launcher) -> None:
    newest = read_job_log(launcher, "job-a", GROUPS)
    assert (newest.attempt, newest.attempts, newest.ranks, newest.text) == (2, 2, 2, "worker 0 of 9\n")
    assert not newest.ended
    first = read_job_log(launcher, "job-a", GROUPS, attempt=1)
    assert (first.ended, first.ranks, first.text, first.last_segment) == (True, 1, "worker 1 of 3\n", 2)
    assert read_job_log(launcher, "job-a", GROUPS, rank=1, after=7).text == "1 of 9\n"


def test_of_an_attempt_whose_ranks_are_not_known_yet_any_has_printed_nothing_yet(launcher: Launcher) -> None:
    log = read_job_log(launcher, "job-a", [a_job_group(77, ended=False)], rank=3)
    assert (log.ranks, log.rank, log.text, log.ended) == (0, 3, "", False)


def test_looking_says_nothing_of_a_group_whose_processes_are_out_of_sight(launcher: Launcher, tmp_path: Path) -> None:
    """As from another container: its agent is no process there, and must not be taken for dead."""
    folder = RunDir.of(tmp_path, 9)
    folder.write_order(order(origin_epoch=9))
    folder.write(AgentProcess(2**22 - 1, 1))
    assert not read_job_log(launcher, "job-a", GROUPS).ended
    assert folder.exit_report() is None


def test_what_is_not_there_is_said_with_what_is(launcher: Launcher) -> None:
    with pytest.raises(NotFound, match="job-a has printed nothing: it had no slots yet"):
        read_job_log(launcher, "job-a", [])
    with pytest.raises(NotFound, match="no attempt 3; there are 1 to 2"):
        read_job_log(launcher, "job-a", GROUPS, attempt=3)
    with pytest.raises(NotFound, match="attempt 2 of job job-a has no rank 2; there are 0 to 1"):
        read_job_log(launcher, "job-a", GROUPS, rank=2)
    with pytest.raises(NotFound, match="printed is not kept any more"):
        read_job_log(launcher, "job-a", [a_job_group(77)])


def test_logs_and_whose_they_are_outlive_the_group_and_its_other_files(home: Path) -> None:
    launcher = scripted(home, "exit:0")
    launcher.start(order(num_slots=2))
    wait_until_dead(launcher)
    launcher.forget(7)
    log = read_job_log(launcher, "job-a", [a_job_group(7)], rank=1)
    assert (log.ranks, log.ended, log.text) == (2, True, "rank 1 of 2 does exit\n")
