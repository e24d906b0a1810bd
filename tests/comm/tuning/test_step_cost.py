"""Predicted steps: between what must be waited for and the sum of all, and the declared bytes are those on the wire."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elastic_core.comm.algorithms import _AVERAGING, _GLOO, create, leaves_layers_out
from elastic_core.comm.allreduce import OrderedAllReduce
from elastic_core.comm.averaging.async_average import AsyncAverage
from elastic_core.comm.averaging.decentralized import Decentralized
from elastic_core.comm.averaging.local_sgd import LocalSgd
from elastic_core.comm.averaging.weight_averaging import INTERVAL
from elastic_core.comm.bytegrad import ByteGrad
from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.comm.tuning.received_bytes import received_bytes
from elastic_core.comm.tuning.step_cost import as_measured, in_buckets, predict, predict_averaging, seconds_per_value
from elastic_core.domain import Link
from tests.comm import ranks
from tests.comm.averaging.training import algorithm

SHAPES = [torch.Size(shape) for shape in ((512, 2048), (2048,), (2048, 2048), (2048,), (10, 2048), (10,))]
LINKS = st.builds(Link, st.floats(0, 0.01), st.floats(0, 1e-6))
SECONDS, WORLDS = st.floats(1e-4, 10.0), st.integers(2, 16)


class Undeclared(HookedAlgorithm):
    name = "undeclared"


@given(LINKS, SECONDS, WORLDS, st.integers(1, 2**27))
def test_a_step_takes_its_computing_and_at_most_the_exchange_after_it(link, computing, world, bucket):
    cost = predict(OrderedAllReduce, SHAPES, world, link, computing, bucket)
    alone = predict(OrderedAllReduce, SHAPES, world, link, 0.0, bucket)
    slack = 1e-9 + 1e-9 * computing
    assert max(computing, alone.seconds) - slack <= cost.seconds <= computing + alone.seconds + slack
    whole = 8 * sum(s.numel() for s in SHAPES) * (world - 1) / world
    assert cost.sent_bytes >= 0.999 * whole, "small buckets that are gathered whole are more bytes"


@given(SECONDS, WORLDS)
def test_what_sends_a_quarter_wins_on_a_slow_link_and_not_where_there_is_nothing_to_win(computing, world):
    slow, free = Link(0.0, 1e-5), Link(0.0, 0.0)
    exact, byte = (predict(a, SHAPES, world, slow, computing).seconds for a in (OrderedAllReduce, ByteGrad))
    assert byte < 0.5 * exact or exact < 1.6 * computing
    assert predict(OrderedAllReduce, SHAPES, world, free, computing).seconds == pytest.approx(computing, abs=1e-3)


@given(LINKS, SECONDS, WORLDS, st.floats(1.01, 1e3))
def test_a_link_as_measured_predicts_the_step_that_was_measured_whatever_the_probe_met(link, computing, world, times):
    measured = times * (computing + 0.01)  # the exact sum's own computing is in it
    right = as_measured(link, OrderedAllReduce, SHAPES, world, computing, measured)
    assert predict(OrderedAllReduce, SHAPES, world, right, computing).seconds == pytest.approx(measured, rel=1e-3)
    assert right.latency <= link.latency


@given(LINKS, SECONDS, WORLDS)
def test_a_link_that_nobody_waited_for_stays_as_it_was_probed(link, computing, world):
    assert as_measured(link, OrderedAllReduce, SHAPES, world, computing, 0.9 * computing) == link


def test_who_declares_no_traffic_is_not_predicted():
    assert predict(Undeclared, SHAPES, 2, Link(0.0, 1e-8), 1.0) is None


@given(st.integers(1, 2**25))
def test_buckets_hold_every_parameter_once_from_the_last_to_the_first(size):
    buckets = in_buckets(SHAPES, size)
    assert [shape for bucket in buckets for shape in bucket] == SHAPES[::-1]
    assert all(buckets)
    for bucket in buckets[1:]:
        assert 4 * sum(shape.numel() for shape in bucket[:-1]) < size, "it was full before its last parameter"


@pytest.mark.parametrize("name", ["fp16", "bytegrad", "powersgd"])
def test_what_an_algorithm_computes_beside_the_sum_takes_time(name):
    assert 0 < seconds_per_value(_GLOO[name]) < 1e-4


def counted(rank: int, world: int, name: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 512), nn.Linear(512, 300))
    partly = leaves_layers_out(name)
    model = DistributedDataParallel(module, gradient_as_bucket_view=True, find_unused_parameters=partly)
    create(name, torch.device("cpu"), dist.new_group() if leaves_layers_out(name) else None).attach(model)
    shapes = [p.shape for p in module.parameters()]
    for _ in range(3):
        before = received_bytes()
        model(torch.randn(4, 512)).sum().backward()
    received = torch.tensor([float(received_bytes() - before)])
    dist.all_reduce(received)
    received = float(received) / world
    declared = predict(_GLOO[name], shapes, world, Link(0, 0), 1.0)
    assert received == pytest.approx(declared.sent_bytes, rel=0.03, abs=3000)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    "name", [name for name, of in _GLOO.items() if of.step_traffic([[torch.Size([4, 4])]], 2) is not None]
)
def test_declared_bytes_are_those_on_the_wire(name, world, tmp_path):
    ranks.run(counted, tmp_path, world, name)


@given(LINKS, SECONDS, WORLDS, st.integers(1, 64))
def test_an_average_at_an_interval_costs_a_step_its_part_of_one(link, computing, world, interval):
    cost = predict_averaging(LocalSgd, SHAPES, world, link, computing, interval)
    each = predict_averaging(LocalSgd, SHAPES, world, link, computing, 1)
    assert cost.seconds - computing == pytest.approx((each.seconds - computing) / interval, rel=1e-6, abs=1e-9)
    assert cost.sent_bytes == pytest.approx(each.sent_bytes / interval)
    exact = predict(OrderedAllReduce, SHAPES, world, link, computing)
    assert each.sent_bytes == pytest.approx(exact.sent_bytes, rel=1e-2)


@given(LINKS, SECONDS, st.sampled_from([2, 4, 8]))
def test_an_exchange_while_the_next_step_computes_takes_the_longer_of_both(link, computing, world):
    cost = predict_averaging(Decentralized, SHAPES, world, link, computing)
    own = sum(shape.numel() for shape in SHAPES) * seconds_per_value(Decentralized, torch.device("cpu"))
    on_link = link.latency + cost.sent_bytes * link.seconds_per_byte
    assert cost.seconds == pytest.approx(max(computing, on_link) + own)


@given(LINKS, SECONDS, WORLDS)
def test_who_waits_for_no_average_is_as_fast_on_every_link_and_sends_as_often_as_that_carries(link, computing, world):
    cost, free = (predict_averaging(AsyncAverage, SHAPES, world, of, computing) for of in (link, Link(0.0, 0.0)))
    assert cost.seconds == free.seconds >= computing
    assert 0 < cost.sent_bytes <= free.sent_bytes
    assert cost.sent_bytes * link.seconds_per_byte <= 1.001 * cost.seconds, "no more than the link carries"


def averages_counted(rank: int, world: int, name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 512), nn.Linear(512, 300))
    optimizer, averaging = torch.optim.SGD(model.parameters(), lr=0.1), algorithm(name)
    averaging.attach(model, optimizer)
    dist.barrier()
    before = received_bytes()
    for _ in range(INTERVAL):
        model(torch.randn(4, 512)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    averaging.close()
    received = torch.tensor([float(received_bytes() - before)])
    dist.all_reduce(received)
    cost = predict_averaging(_AVERAGING[name], [p.shape for p in model.parameters()], world, Link(0, 0), 1.0)
    assert float(received) / world == pytest.approx(INTERVAL * cost.sent_bytes, rel=0.03, abs=3000)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", list(_AVERAGING))
def test_declared_bytes_of_averages_are_those_on_the_wire(name, world, tmp_path):
    ranks.run(averages_counted, tmp_path, world, name)


@pytest.mark.parametrize("name", list(_AVERAGING))
def test_what_an_average_computes_takes_time(name):
    assert 0 < seconds_per_value(_AVERAGING[name]) < 1e-4
