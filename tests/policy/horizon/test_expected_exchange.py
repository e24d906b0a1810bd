"""Slots that a job was never on are decided with the exchange that it would choose there, and the target names it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from elastic_core.domain import ExchangeCost, JobView, Snapshot, Target
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.plans.exchanges import with_exchanges
from elastic_core.policy.plans.grants import granted
from tests.policy.builders import holding, job, limits, measured, nodes, point, snapshot, told_costs
from tests.predict.speed.test_exchange_forecast import BYTES, EXACT, FAST, SLOW, cost

AUTO = limits((1, 2, 4), batch=(64, 64), comm="auto", comm_allow="lossy")
THIN = cost("powersgd", 0.1)
NODES = nodes(2, 2)
ON_ONE_NODE = (point(1, 64, 1.0), point(2, 64, 0.52, sync=0.01))


def scales(*costs: ExchangeCost, lim=AUTO) -> JobView:
    """On one node it scales, and it has never left it."""
    view = measured(job("a", lim=lim, task="t", exchange=told_costs(EXACT, *costs, link=FAST)), *ON_ONE_NODE)
    return holding(view, *NODES[0].slots())


# Of a pool that it has left: it met the link between the nodes.
STRANGER = job("z", 1.0, limits((1,), comm="auto", comm_allow="lossy"), task="u",
               exchange=told_costs(EXACT, BYTES, link=SLOW, num_nodes=2), paused="by its user")  # fmt: skip


def decided(view: JobView, *others: JobView) -> Target:
    """Of a pool whose links were told of before."""
    told = Horizon().decide(snapshot(NODES, *others), Random(0)).state if others else {}
    picture = snapshot(NODES, view, now=1000.0, state=told)
    return with_exchanges(Horizon().decide(picture, Random(0)), picture).targets["a"]


def test_slots_of_two_nodes_are_given_where_some_exchange_makes_them_worth_it() -> None:
    target = decided(scales(BYTES, THIN), STRANGER)
    assert (target.counts, target.comm, target.expected_comm) == ({"cpu": 4}, "auto", "powersgd")
    assert "counting with powersgd there: by the links and its bytes a step 7" in target.reason
    assert "times as fast as by allreduce" in target.reason
    allocation = granted(target, tuple(slot for node in NODES for slot in node.slots()))
    assert allocation.expected_comm == "powersgd"
    assert allocation == replace(allocation, expected_comm=""), "nobody is moved for it"


def test_they_are_not_where_the_best_admitted_would_still_wait_too_long() -> None:
    target = decided(scales(BYTES), STRANGER)
    assert target.counts == {"cpu": 2}
    assert "counting with" not in target.reason
    assert target.expected_comm == "allreduce", "which its ranks keep within a node"


def test_without_a_link_between_nodes_the_model_of_step_times_says_what_they_are_worth() -> None:
    target = decided(scales(BYTES))
    assert target.counts == {"cpu": 4}
    assert target.expected_comm == ""


def test_a_named_exchange_is_counted_with_alone() -> None:
    slow, thin = (replace(AUTO, comm=name, comm_allow="") for name in ("bytegrad", "powersgd"))
    views = [
        holding(measured(job("a", lim=lim, task="t", exchange=told_costs(EXACT, own, link=FAST)),
                         ON_ONE_NODE[0], replace(ON_ONE_NODE[1], comm=lim.comm)), *NODES[0].slots())
        for lim, own in ((slow, BYTES), (thin, THIN))
    ]  # fmt: skip
    assert [decided(view, STRANGER).num_slots for view in views] == [2, 4]
    assert [decided(view, STRANGER).expected_comm for view in views] == ["", ""], "there is nothing to choose"


def test_what_was_measured_there_has_the_last_word() -> None:
    slower = replace(point(4, 64, 0.9, sync=0.6, num_nodes=2), comm="powersgd", count=16)
    view = scales(BYTES, THIN)
    assert decided(measured(view, slower), STRANGER).counts == {"cpu": 2}
    faster = replace(point(4, 64, 0.3, sync=0.05, num_nodes=2), comm="bytegrad", count=16)
    target = decided(measured(view, faster), STRANGER)
    assert (target.counts, target.expected_comm) == ({"cpu": 4}, "bytegrad")
    assert "counting with" not in target.reason


def test_the_next_job_of_the_task_is_decided_with_what_the_first_one_told() -> None:
    first = decided_state(snapshot(NODES, scales(BYTES, THIN), STRANGER))
    new = job("b", 1.0, AUTO, task="t")
    picture = snapshot(NODES, new, now=2000.0, state=first)
    target = with_exchanges(Horizon().decide(picture, Random(0)), picture).targets["b"]
    assert (target.counts, target.expected_comm) == ({"cpu": 4}, "powersgd")


def decided_state(picture: Snapshot) -> object:
    return Horizon().decide(picture, Random(0)).state


def test_of_exact_jobs_nothing_is_remembered() -> None:
    exact = replace(AUTO, comm="allreduce", comm_allow="")
    view = replace(scales(BYTES, THIN, lim=exact), exchange=None)
    plan = Horizon().decide(snapshot(NODES, view), Random(0))
    assert "exchanges" not in plan.state
    assert plan.targets["a"].expected_comm == ""
