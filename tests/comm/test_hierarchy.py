"""Ranks that share nodes: sums within each first, and between nodes only what one rank of each sends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from elastic_core.comm.algorithms import averaging_class, create
from elastic_core.comm.hierarchy import Hierarchy, hierarchy_of
from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.comm.tuning.received_bytes import received_by_connection
from tests.comm import ranks

CPU = torch.device("cpu")
PAIRS, UNEVEN, APART = ["a", "a", "b", "b"], ["b", "a", "b", "b", "a"], ["a", "b", "a", "b"]
VALUES = 400_003


def test_it_is_made_only_where_it_changes_something():
    assert hierarchy_of(["a", "a", "a"]) is None
    assert hierarchy_of(["a", "b", "c"]) is None
    assert hierarchy_of([]) is None


def values(rank: int) -> Tensor:
    return torch.randn(VALUES, generator=torch.Generator().manual_seed(rank))


def made(name: str, nodes: list[str]) -> HookedAlgorithm:
    algorithm = create(name, CPU, nodes=nodes)
    assert isinstance(algorithm, HookedAlgorithm)
    return algorithm


def sums(rank: int, world: int, name: str, nodes: list[str]) -> None:
    """Against the sum by nodes in one process; the same bits on every rank."""
    got = made(name, nodes).sum(values(rank))
    by_node: dict[str, Tensor] = {}
    for other, node in enumerate(nodes):
        by_node[node] = by_node[node] + values(other) if node in by_node else values(other)
    whole = sum(by_node.values())
    assert isinstance(whole, Tensor)
    if name == "allreduce":
        assert torch.equal(got, whole)
    else:
        step = {"fp16": 2e-3, "bf16": 2e-2}.get(name, 1.0 / 255) * float(whole.max() - whole.min()) * 2
        torch.testing.assert_close(got, whole, rtol=0.0, atol=step)
    first = got.clone()
    dist.broadcast(first, 0)
    assert torch.equal(first, got)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("nodes", [PAIRS, UNEVEN, APART], ids=["pairs", "uneven", "apart"])
@pytest.mark.parametrize("name", ["allreduce", "fp16", "bf16", "bytegrad"])
def test_sums_are_those_of_nodes_and_alike_on_all_ranks(tmp_path, name, nodes):
    ranks.run(sums, tmp_path, len(nodes), name, nodes)


def between_nodes(nodes: list[str], exchange: Callable[[], object]) -> int:
    """Bytes that the exchange has carried from nodes to others, by the kernel's counters of each connection."""
    before = received_by_connection()
    dist.barrier()
    exchange()
    dist.barrier()
    own = [(connection, count - before.get(connection, 0)) for connection, count in received_by_connection().items()]
    told: list[list[tuple[tuple[object, object], int]]] = [[] for _ in nodes]
    dist.all_gather_object(told, own)
    owner = {here: rank for rank, rows in enumerate(told) for (here, _), _ in rows}
    crossing = ((rank, owner.get(there), count) for rank, rows in enumerate(told) for (_, there), count in rows)
    return sum(count for rank, other, count in crossing if other is not None and nodes[rank] != nodes[other])


def sends(rank: int, world: int, name: str, a_value: float) -> None:
    """Two nodes with two ranks each: between them what two ranks alone would send, a third of all four's."""
    whole, flat = made(name, PAIRS), made(name, [])
    got = between_nodes(PAIRS, lambda: whole.sum(values(rank)))
    of_all = between_nodes(PAIRS, lambda: flat.sum(values(rank)))
    barriers = 20_000  # and what torch says besides
    assert 0 <= got - 2 * a_value * VALUES / 2 < barriers
    assert of_all > 1.7 * got, "twice as much, but for gloo's rings, half of whose steps stay within nodes"


@pytest.mark.parametrize(("name", "a_value"), [("allreduce", 8), ("fp16", 4), ("bytegrad", 2)])
def test_between_two_nodes_of_two_ranks_travels_half_of_what_all_ranks_would_send(tmp_path, name, a_value):
    ranks.run(sends, tmp_path, 4, name, a_value)


def averages(rank: int, world: int, name: str) -> None:
    """With SGD from the same weights, one step and an average: the mean of what each rank did."""
    nodes = PAIRS
    torch.manual_seed(0)
    model = nn.Linear(300, 400)
    start = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    averaging = averaging_class(name)(dist.new_group(), 1)
    hierarchy = hierarchy_of(nodes, averaging._group)
    assert isinstance(hierarchy, Hierarchy)
    averaging.within(hierarchy)
    averaging.attach(model, optimizer)
    gradients = [torch.randn(400, 300, generator=torch.Generator().manual_seed(other)) for other in range(world)]

    def step() -> None:
        model.weight.grad = gradients[rank].clone()
        optimizer.step()
        averaging.settle()

    carried = between_nodes(nodes, step)
    want = start - torch.stack(gradients).mean(0)
    if name != "diloco":  # which moves by its outer optimizer
        torch.testing.assert_close(model.weight.detach(), want, rtol=1e-5, atol=1e-5)
    first = model.weight.detach().clone()
    dist.broadcast(first, 0)
    assert torch.equal(first, model.weight.detach())
    average = 2 * 8 * 300 * 400 / 2
    assert carried < {"local_sgd": 2.2, "decentralized_all": 2.2, "diloco": 1.5}[name] * average
    averaging.close()


@pytest.mark.parametrize("name", ["local_sgd", "diloco", "decentralized_all"])
def test_weights_are_averaged_within_nodes_first(tmp_path, name):
    ranks.run(averages, tmp_path, 4, name)
