"""What became of a group over several nodes is what began it."""

from __future__ import annotations

import pytest

from elastic_core.launch.on_ray.merged_exit import merged
from elastic_core.protocol.process_groups import ExitKind, ExitReport


def report(kind: str, error: str = "", *codes: int) -> ExitReport:
    return ExitReport(kind=ExitKind(kind), error=error, exit_codes=codes)


@pytest.mark.parametrize(
    ("kinds", "want"),
    [
        (("boundary", "boundary"), "boundary"),
        (("boundary", "stopped"), "stopped"),
        (("stopped", "infrastructure"), "infrastructure"),
        (("infrastructure", "diverged"), "diverged"),
        (("diverged", "user_error", "infrastructure"), "user_error"),
    ],
)
def test_the_weightiest_kind_holds(kinds: tuple[str, ...], want: str) -> None:
    assert merged([report(kind) for kind in kinds]).kind == want


def test_a_node_that_is_gone_and_a_killed_worker_come_before_what_followed() -> None:
    followed, killed = report("infrastructure", "lost the others", 11), report("infrastructure", "killed", 11, -9)
    gone = report("infrastructure", "node b is gone")
    assert merged([followed, killed]).error == "killed"
    assert merged([followed, killed, gone]).error == "node b is gone"
    assert merged([followed, killed]).exit_codes == (11, 11, -9)


def test_of_alike_faults_the_one_that_came_first_is_what_began_it() -> None:
    killed, gone = report("infrastructure", "the agent was killed"), report("infrastructure", "node b is gone")
    assert merged([killed, gone], first=gone).error == "node b is gone"
    assert merged([killed, gone], first=killed).error == "the agent was killed"
    failed = report("user_error", "a wrong shape", 1)
    assert merged([gone, failed], first=gone).error == "a wrong shape"  # ranks say what they lost others by


def test_a_group_that_nobody_had_a_part_in_is_a_fault() -> None:
    assert merged([]).kind == "infrastructure"
