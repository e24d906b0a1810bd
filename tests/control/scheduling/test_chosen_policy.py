"""The policy is changed while jobs run: at once, with a state of its own, for every process that decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.errors import UserError
from elastic_core.protocol.events import EventKind
from tests.builders import FACTS, FakeClock, Life, a_control, a_spec
from tests.control.conftest import Plane


def changes(control: LedgerControl) -> list[tuple[str, str]]:
    events = control.feed.events(0)
    return [
        (event.payload["before"], event.payload["policy"]) for event in events if event.kind is EventKind.POLICY_CHANGED
    ]


def test_the_configured_policy_decides_until_another_is_set(plane: Plane) -> None:
    before = plane.service.policy()
    assert (before.policy, before.configured, before.set_by_operator) == ("fair_share", "fair_share", False)
    after = plane.service.set_policy("horizon")
    assert (after.policy, after.configured, after.set_by_operator) == ("horizon", "fair_share", True)
    assert plane.service.policy() == after
    assert plane.service.set_policy(None) == before


def test_the_new_policy_decides_at_once_and_running_jobs_go_on(plane: Plane) -> None:
    life = plane.life()
    order = life.start()
    decisions = [plane.service.explain("job-a").decision_id]
    for policy in ("elastic_batch", "horizon", "fair_share"):
        plane.service.set_policy(policy)
        explained = plane.service.explain("job-a")
        decisions.append(explained.decision_id)
        assert explained.policy == policy
        assert f"the policy is {policy} from now on" in explained.trigger
    assert len(set(decisions)) == 4
    segment = plane.service.segment(order.segment_id)
    assert (segment.epoch, segment.lease_live, segment.attempt) == (order.epoch, True, 0)


def test_a_policy_does_not_get_the_state_of_another_nor_its_own_of_long_ago(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    Life(control, control.trainer, "job-a").start()
    control.set_policy("horizon")
    assert control.snapshot().policy_state != {}, "it has decided and remembers something"
    control.set_policy("fair_share")
    first = control.explain("job-a").decision_id
    control.set_policy("horizon")
    second = control.explain("job-a").decision_id
    assert first is not None
    assert second is not None
    assert [control.replay(decision).snapshot.policy_state for decision in (first, second)] == [{}, {}]


def test_changes_are_told_and_setting_the_same_again_changes_nothing(control: LedgerControl) -> None:
    version = control.set_policy("fair_share") and control.snapshot().version
    assert changes(control) == []
    for policy in ("horizon", "horizon", None):
        control.set_policy(policy)
    assert changes(control) == [("fair_share", "horizon"), ("horizon", "fair_share")]
    assert control.snapshot().version == version + 2


def test_it_stays_for_a_control_plane_that_starts_later_and_for_others_at_once(
    control: LedgerControl, ledger_url: str, tmp_path: Path, clock: FakeClock
) -> None:
    other = a_control(ledger_url, tmp_path, clock, policy="gavel")
    control.set_policy("elastic_batch")
    assert (other.policy().policy, other.policy().configured) == ("elastic_batch", "gavel")
    other.submit("job-a", a_spec(), FACTS)
    other.acquire("job-a__seg_0")
    assert other.explain("job-a").policy == "elastic_batch"
    other.close()


def test_one_that_was_configured_while_nothing_was_up_decides_as_soon_as_somebody_looks(
    control: LedgerControl, ledger_url: str, tmp_path: Path, clock: FakeClock
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    control.acquire("job-a__seg_0")
    later = a_control(ledger_url, tmp_path, clock, policy="gavel")
    assert later.explain("job-a").policy == "fair_share"
    for _ in range(2):
        later.reconcile(())
        assert later.explain("job-a").policy == "gavel"
    assert later.explain("job-a").trigger == "the policy is gavel from now on, it was fair_share"
    assert changes(later) == [("fair_share", "gavel")], "once"
    later.close()


def test_a_policy_that_does_not_exist_is_refused_with_those_that_do(plane: Plane) -> None:
    with pytest.raises(UserError, match=r"no policy is called 'horizont'. Did you mean 'horizon'.*There are: "):
        plane.service.set_policy("horizont")
    assert plane.service.policy().policy == "fair_share"
