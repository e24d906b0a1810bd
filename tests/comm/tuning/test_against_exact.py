"""A named exchange in training: what it saves against the exact sum, without a step by that."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elastic_core.comm.algorithms import averaging_class, class_of, create
from elastic_core.comm.hierarchy import hierarchy_of
from elastic_core.comm.tuning import against_exact
from elastic_core.comm.tuning.against_exact import AgainstExact
from elastic_core.comm.tuning.link_probe import probe
from elastic_core.comm.tuning.trial import TIMED_STEPS, WARM_STEPS
from elastic_core.domain import Link
from tests.comm import ranks

CPU = torch.device("cpu")
A_TRIAL = WARM_STEPS + TIMED_STEPS
WIDTH = 128


def gradients(rank: int, world: int, name: str) -> None:
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH), gradient_as_bucket_view=True)
    exchange = create(name, CPU, dist.new_group())
    exchange.attach(model)
    shapes = [parameter.shape for parameter in model.parameters()]
    against = AgainstExact(exchange, class_of(name), shapes)
    steps = 0
    while not against.chosen:
        model(torch.ones(2, WIDTH)).sum().backward()
        against.stepped(0.5, 0.4)
        steps += 1
        assert exchange.in_force == name
    assert steps == A_TRIAL
    assert not against.stepped(0.5, 0.4), "told once"
    own, exact = against.tried
    assert (own.algorithm, own.measured_seconds) == (name, 0.5)
    assert own.predicted_seconds == pytest.approx(0.5, rel=1e-3), "the link is as the steps say"
    assert own.measured_bytes == pytest.approx(own.predicted_bytes, rel=0.1)
    assert (exact.algorithm, exact.measured_seconds) == ("allreduce", None)
    assert exact.predicted_seconds > 1.5 * own.measured_seconds
    assert exact.predicted_bytes > 1.9 * own.measured_bytes
    assert {cost.algorithm for cost in against.costs()} == {name, "allreduce"}
    assert against.link.seconds_per_byte > 0
    exchange.close()


@pytest.mark.parametrize("name", ["fp16", "bytegrad"])
def test_the_exact_sum_is_predicted_on_the_link_that_the_steps_tell(tmp_path, name):
    ranks.run(gradients, tmp_path, 2, name)


def slow(group: dist.ProcessGroup | None, among: list[int]) -> Link:
    """Probed, and slow: on a machine that is busy the probe alone tells of any link."""
    probe(group, among)
    return Link(latency=1e-4, seconds_per_byte=1e-6)


def within_nodes(rank: int, world: int, name: str, nodes: list[str]) -> None:
    against_exact.probe = slow  # in this process, of this rank
    received = {}
    for algorithm in (name, "allreduce"):
        model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH), gradient_as_bucket_view=True)
        exchange = create(algorithm, CPU, dist.new_group(), nodes=nodes)
        exchange.attach(model)
        shapes = [parameter.shape for parameter in model.parameters()]
        against = AgainstExact(exchange, class_of(algorithm), shapes, leaders=hierarchy_of(nodes).leaders)
        while not against.chosen:
            model(torch.ones(2, WIDTH)).sum().backward()
            against.stepped(0.5, 0.4)
        received[algorithm] = against.tried
        assert against.costs() == ()
        assert against.link is None, "nothing that holds on other nodes"
        exchange.close()
    (own, exact), (measured, *_) = received[name], received["allreduce"]
    assert (own.measured_seconds, own.predicted_seconds, exact.measured_seconds) == (0.5, None, None)
    assert exact.predicted_seconds > 0.5
    assert exact.predicted_bytes == pytest.approx(measured.measured_bytes, rel=0.1)
    assert exact.predicted_bytes > 1.1 * own.measured_bytes


@pytest.mark.parametrize("nodes", [["a", "a", "b", "b"], ["a", "b", "b", "c"]], ids="".join)
def test_within_nodes_first_the_exact_sum_is_predicted_between_their_leaders(tmp_path, nodes):
    ranks.run(within_nodes, tmp_path, 4, "bytegrad", nodes)


def momenta(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH), gradient_as_bucket_view=True)
    exchange = create("qadam", CPU, dist.new_group(), warmup_steps=A_TRIAL + 2)
    exchange.attach(model)
    optimizer = torch.optim.AdamW(model.parameters())
    exchange.follow(optimizer)
    against = AgainstExact(exchange, class_of("qadam"), [parameter.shape for parameter in model.parameters()])
    while not against.chosen:
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        slow = exchange.in_force == "allreduce"
        against.stepped(2.0 if slow else 1.0, 0.5)
    own, exact = against.tried
    assert (own.measured_seconds, exact.measured_seconds) == (1.0, 2.0)
    assert exact.measured_bytes > 3 * own.measured_bytes
    assert against.link is None, "nothing is predicted"
    exchange.close()


def test_a_warm_up_by_the_exact_sum_is_measured(tmp_path):
    ranks.run(momenta, tmp_path, 2)


def averages(rank: int, world: int, settles_after: int) -> None:
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    exchange = averaging_class("local_sgd")(None, 4)
    exchange.attach(model, optimizer)
    against = AgainstExact(exchange, class_of("local_sgd"), [parameter.shape for parameter in model.parameters()], 4)
    steps = since = 0
    while not against.chosen:
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        steps, since = steps + 1, since + 1
        against.stepped(0.9 if since % 4 == 0 else 0.1, 0.0)
        if steps == settles_after:
            exchange.settle()
            against.settled()
            since = 0
    assert steps == settles_after + 8, "one interval, and one before it"
    own, exact = against.tried
    assert own.measured_seconds == pytest.approx(0.3)
    assert own.measured_bytes == pytest.approx(own.predicted_bytes, rel=0.1)
    assert 4 * own.predicted_bytes == pytest.approx(exact.predicted_bytes)
    exchange.close()


@pytest.mark.parametrize("settles_after", [0, 2, 7])
def test_of_an_average_a_whole_interval_counts_that_no_checkpoint_has_cut(tmp_path, settles_after):
    ranks.run(averages, tmp_path, 2, settles_after)
