"""The pool, and what a job may ask of it."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_core.errors import UserError
from elastic_core.spec import ClusterSpec, check_against, parse_cluster_spec, parse_job_spec

CLUSTER = {"nodes": [{"name": "a", "type": "h200", "slots": 8}, {"name": "b", "type": "cpu", "slots": 2}]}
NOW = 1_900_000_000.0  # 2030-03-17


def cluster(data: Any = CLUSTER) -> ClusterSpec:
    return parse_cluster_spec(data)


def check(**changes: Any) -> None:
    job = {"name": "j", "entry_point": "m:C", "work": {"epochs": 1}, "batch": {"min": 1, "max": 64}, **changes}
    check_against(parse_job_spec(job), cluster(), now=NOW)


def node(name: str, address: str | None, namespace: str | None = None) -> dict[str, Any]:
    return {"name": name, "type": "cpu", "slots": 1, "address": address, "network_namespace": namespace}


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([], "nodes: tuple should have at least 1 item"),
        ([{"name": "a", "type": "cpu", "slot": 1}], "nodes.0.slot: there is no such key; did you mean 'slots'?"),
        (
            [{"name": "a", "type": "cpu", "slots": 0}],
            "nodes.0.slots: input should be greater than or equal to 1, seen 0",
        ),
        ([{"name": "a", "type": "cpu", "slots": 1}] * 2, "node names must differ, and ['a'] are given more than once"),
        ([{"name": "A", "type": "cpu", "slots": 1}], "nodes.0.name: string should match pattern"),
        ([node("a", "host-7")], "'host-7' is no IP address; write it in digits"),
        ([node("a", "0.0.0.0")], "0.0.0.0 is not the address of one host"),
        ([node("a", "::")], ":: is not the address of one host"),
        ([node("a", "224.0.0.1")], "224.0.0.1 is not the address of one host"),
        ([node("a", "fe80::1")], "fe80::1 is not the address of one host"),
        ([node("a", "10.0.0.1"), node("b", None)], "either every node has an address of its own or none: ['b']"),
        ([node("a", "10.0.0.1"), node("b", "127.0.0.1")], "either every node has an address of its own or none: ['b']"),
        ([node("a", None, "ns")], "has the network namespace 'ns' and no address of its own"),
        ([node("a", "127.0.0.1", "ns")], "has the network namespace 'ns' and no address of its own"),
        ([node("a", "10.0.0.1", "x/../y")], "nodes.0.network_namespace: string should match pattern"),
        (
            [node("a", "10.0.0.1", "ns"), node("b", "10.0.0.1", "other")],
            "['10.0.0.1'] are given to several network namespaces",
        ),
    ],
)
def test_a_bad_cluster_is_refused(nodes: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        cluster({"nodes": nodes})
    assert said in str(caught.value)


def test_wrong_items_are_not_also_called_too_few() -> None:
    with pytest.raises(UserError) as caught:
        cluster({"nodes": [{"name": "a", "type": "cpu"}]})
    assert "the cluster spec has 1 problem:\n- nodes.0.slots: is needed and was not given" in str(caught.value)


def test_a_node_has_an_address_of_its_own_or_is_on_loopback() -> None:
    nodes = cluster({"nodes": [node("a", "10.0.0.1"), node("b", "10.0.0.1"), node("c", "FD00::01", "ns")]}).nodes
    assert [known.address for known in nodes] == ["10.0.0.1", "10.0.0.1", "fd00::1"]
    assert [known.has_address for known in cluster({"nodes": [node("a", "127.0.0.1"), node("b", None)]}).nodes] == [
        False,
        False,
    ]


def test_capacity_is_by_type() -> None:
    assert cluster().capacity() == {"h200": 8, "cpu": 2}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slots": {"types": ["h20"]}}, "no type 'h20'; did you mean 'h200'? It has 2 of cpu, 8 of h200"),
        (
            {"slots": {"min": 9}},
            "at least 9 slots of one type, and the cluster has 2 of cpu, 8 of h200; possible are at most 8",
        ),
        ({"slots": {"min": 3, "types": ["cpu"]}}, "at least 3 slots of one type"),
        ({"slots": {"min": 3, "types": ["cpu"]}}, "possible are at most 2"),
        ({"deadline": "2020-01-01"}, "deadline: 2020-01-01T00:00:00+00:00 has passed, it is 2030-03-17"),
    ],
)
def test_what_the_cluster_can_never_give_is_refused(changes: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        check(**changes)
    assert said in str(caught.value)


def test_workers_and_servers_may_fit_two_types_where_they_fit_none_alone() -> None:
    served = {"sync": "parameter_server", "batch": {"min": 64, "max": 64}, "servers": {"min": 1, "max": 2}}
    check(slots={"min": 10, "max": 10}, **served)
    with pytest.raises(UserError, match="at least 11 slots of one type"):
        check(slots={"min": 11, "max": 11}, **served)
    with pytest.raises(UserError, match="at least 9 slots of one type"):
        check(slots={"min": 9, "max": 9, "types": ["h200"]}, **served)


def test_both_reasons_are_told() -> None:
    with pytest.raises(UserError, match="the job spec has 2 problems"):
        check(slots={"min": 9}, deadline="2020-01-01T00:00:00")


@pytest.mark.parametrize("changes", [{}, {"slots": {"min": 8}}, {"slots": {"max": 64, "types": ["h200", "cpu"]}}])
def test_what_can_run_passes(changes: Any) -> None:
    check(**changes)


def with_queues(*queues: Any) -> dict[str, Any]:
    return {**CLUSTER, "queues": list(queues)}


RESEARCH = {"name": "research", "guaranteed": {"h200": 6}}


def test_queues_have_guaranteed_shares_by_type() -> None:
    shares = cluster(with_queues({"name": "prod", "guaranteed": {"h200": 2, "cpu": 1}}, RESEARCH)).domain_queues()
    assert [(queue.name, queue.guaranteed) for queue in shares] == [
        ("prod", {"h200": 2, "cpu": 1}),
        ("research", {"h200": 6}),
    ]


@pytest.mark.parametrize(
    ("queues", "said"),
    [
        ([RESEARCH] * 2, "queue names must differ, and ['research'] are given more than once"),
        ([{"name": "a", "guaranteed": {"h20": 1}}], "of 'h20', which no node has; did you mean 'h200'?"),
        (
            [RESEARCH, {"name": "prod", "guaranteed": {"h200": 3}}],
            "the queues are guaranteed 6 (research) + 3 (prod) slots of 'h200', and the nodes have 8 in all",
        ),
        ([{"name": "a", "guaranteed": {"h200": 0}}], "queues.0.guaranteed.h200: input should be greater than 0"),
        ([{"name": "a", "guaranted": {"h200": 1}}], "there is no such key; did you mean 'guaranteed'?"),
    ],
)
def test_shares_that_cannot_be_kept_are_refused(queues: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        cluster(with_queues(*queues))
    assert said in str(caught.value)


def test_a_queue_that_does_not_exist_is_refused_with_those_that_do() -> None:
    job = {"name": "j", "entry_point": "m:C", "work": {"epochs": 1}, "batch": {"min": 1, "max": 64}}
    shared = cluster(with_queues(RESEARCH))
    with pytest.raises(UserError, match="no queue 'reserch'; did you mean 'research'"):
        check_against(parse_job_spec({**job, "queue": "reserch"}), shared)
    for fine in ("research", "default"):
        check_against(parse_job_spec({**job, "queue": fine}), shared)
    with pytest.raises(UserError, match=r"no queue 'any-label'\. It has 'default' only"):
        check_against(parse_job_spec({**job, "queue": "any-label"}), cluster())


def test_a_queue_may_have_rules_and_no_share_of_its_own() -> None:
    team = {"name": "team", "owners": ["olga", "group:leads"], "members": ["dag:nightly"], "max_priority": 5,
            "max_jobs": 10, "max_jobs_per_user": 2}  # fmt: skip
    (queue,) = cluster(with_queues(team)).queues
    assert queue.rules() == {name: value for name, value in team.items() if name != "name"}
    assert cluster(with_queues(team)).domain_queues() == (), "a decision has to know of shares and limits of slots only"
    (limited,) = cluster(with_queues({**team, "max_slots": 4, "max_slots_per_user": 2})).domain_queues()
    assert (limited.guaranteed, limited.max_slots, limited.max_slots_per_user) == ({}, 4, 2)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"members": ["group:"]}, "queues.0.members.0: 'group:' names nobody; write a user's name as Airflow has it"),
        ({"owners": [" ann"]}, "queues.0.owners.0: ' ann' names nobody"),
        ({"max_jobs": 0}, "queues.0.max_jobs: input should be greater than 0"),
        ({"max_priority": 101}, "queues.0.max_priority: input should be less than or equal to 100"),
        ({"member": ["ann"]}, "there is no such key; did you mean 'members'?"),
    ],
)
def test_rules_that_say_nothing_are_refused(rules: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        cluster(with_queues({"name": "team", **rules}))
    assert said in str(caught.value)
