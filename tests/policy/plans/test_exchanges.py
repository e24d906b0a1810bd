"""Targets carry the exchange of their job, and the reason says what a job that chooses has kept there."""

from __future__ import annotations

from dataclasses import replace

from elastic_core.domain import Layout, Plan, ProfilePoint, Target
from elastic_core.policy.plans.exchanges import with_exchanges
from tests.policy.builders import job, limits, nodes, point, snapshot


def planned(comm: str, *profile: ProfilePoint, count: int = 2) -> Target:
    view = replace(job("a", lim=limits(comm=comm)), profile=profile)
    target = Target(counts={"cpu": count}, global_batch=64, layout=Layout(data=count), reason="because")
    return with_exchanges(Plan(policy="p", targets={"a": target}), snapshot(nodes(1, 1), view)).targets["a"]


SLOW = replace(point(2, 64, 2.0, sync=1.6, num_nodes=2), count=4)
QUICK = replace(point(2, 64, 0.61, num_nodes=2), comm="powersgd", count=16)


def test_the_reason_names_what_was_kept_and_what_it_saves() -> None:
    target = planned("auto", point(1, 64, 1.0), SLOW, QUICK)
    assert target.comm == "auto"
    assert target.reason == "because; exchanging by powersgd there, a step 3.3 times as fast as by allreduce"


def test_the_target_names_what_was_kept_before_what_a_policy_expected() -> None:
    view = replace(job("a", lim=limits(comm="auto")), profile=(SLOW, QUICK))
    other = replace(view, job_id="b", profile=(SLOW,))
    named = replace(view, job_id="c", limits=limits(comm="fp16"))
    target = Target(counts={"cpu": 2}, global_batch=64, layout=Layout(data=2), expected_comm="bytegrad")
    plan = Plan(policy="p", targets=dict.fromkeys("abc", target))
    targets = with_exchanges(plan, snapshot(nodes(1, 1), view, other, named)).targets
    assert [targets[name].expected_comm for name in "abc"] == ["powersgd", "bytegrad", ""]


def test_the_exact_sum_that_was_kept_is_named_without_another() -> None:
    kept = replace(SLOW, count=16)
    assert planned("auto", kept).reason == "because; exchanging by allreduce there"


def test_where_nothing_was_kept_or_chosen_nothing_is_said() -> None:
    assert planned("auto", SLOW).reason == "because"
    assert planned("auto", QUICK, count=1).reason == "because"
    assert planned("bytegrad", replace(QUICK, comm="bytegrad")).reason == "because"
    assert planned("allreduce", replace(SLOW, count=16)).comm == "allreduce"
