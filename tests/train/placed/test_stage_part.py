"""What a task may not ask for in a placed job, each refused in words; and what its stages are cut to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elastic_core.domain import Allocation, Layout, PlacedStage, Slot
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.train.layouts import Declared, dense_fallback
from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.stages import names_of_layers
from elastic_core.train.placed.sharded_embedding import ShardedEmbedding, sparse_tables
from elastic_core.train.placed.stage_part import cut_stage
from elastic_core.train.placed.stage_places import StagePlaces


class Chain(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(7, 3, sparse=True, **options)
        self.head = nn.Linear(3, 1)
        self.spare = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x))


def allocation(*stages: tuple[int, int, str, int], kinds: str = "") -> Allocation:
    placed = tuple(PlacedStage(layers=(a, b), type=kind, num_slots=count) for a, b, kind, count in stages)
    slots = [kind for _, _, kind, count in stages for _ in range(count)]
    named = tuple(Slot("n", index, kind) for index, kind in enumerate(kinds.split() or slots))
    return Allocation(slots=named, global_batch=4, layout=Layout(data=len(named)), stages=placed)


def alone(layers: int = 2) -> StagePlaces:
    return StagePlaces(Group(), allocation((0, layers, "cpu", 1)))


def test_layers_are_named_as_in_the_model_and_must_be_all_of_it():
    model = Chain()
    assert names_of_layers(model, [model.table, model.head]) == ("table", "head")
    with pytest.raises(UserError, match=r"declares no layers: override Task.layers\(model\)"):
        names_of_layers(model, [])
    with pytest.raises(UserError, match=r"no submodules of the model: 1 \(ReLU\)"):
        names_of_layers(model, [model.table, nn.ReLU()])
    with pytest.raises(UserError, match=r"head.weight lies in no unit of Task.layers\(model\)"):
        names_of_layers(model, [model.table])


def test_stages_of_other_layers_than_the_tasks_are_refused():
    model = Chain()
    declared = Declared(layers=lambda model: [model.table, model.head])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UserError, match="are for 3 layers, and the task declares 2: table, head"):
        cut_stage(model, optimizer, alone(3), declared, torch.device("cpu"), torch.no_grad)


@pytest.mark.parametrize(
    ("stages", "kinds", "words"),
    [
        ([(0, 1, "cpu", 1), (2, 3, "cpu", 1)], "", "follow each other"),
        ([(0, 1, "cpu", 1)], "cpu cpu", "1 of the allocation's slots belong to no stage"),
        ([(0, 1, "cpu", 2)], "cpu", "of a layer and a slot at least"),
        ([(0, 1, "cpu", 1), (1, 2, "t4", 1)], "t4 cpu", r"layer 0 on 1 cpu has slots of \['t4'\]"),
    ],
)
def test_stages_that_do_not_fit_the_slots_are_refused(stages, kinds, words):
    with pytest.raises(InfrastructureError, match=words):
        StagePlaces(Group(), allocation(*stages, kinds=kinds))


def test_what_rows_that_lie_elsewhere_cannot_do_is_refused():
    with pytest.raises(UserError, match="table has max_norm or scale_grad_by_freq"):
        sparse_tables(Chain(max_norm=1.0))
    model = Chain()
    model.other = nn.EmbeddingBag(7, 3, sparse=True)
    model.other.weight = model.table.weight
    with pytest.raises(UserError, match=r"table.weight and other.weight are one parameter"):
        sparse_tables(model)


def test_an_optimizer_that_has_made_steps_is_refused():
    model = Chain()
    optimizer = torch.optim.Adagrad(model.parameters())
    model(torch.tensor([[1, 2]])).sum().backward()
    optimizer.step()
    declared = Declared(layers=lambda model: [model.table, model.head])
    with pytest.raises(UserError, match="has made steps already"):
        cut_stage(model, optimizer, alone(), declared, torch.device("cpu"), torch.no_grad)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_rows_that_are_pulled_give_what_the_table_gives_and_the_same_gradient(mode, padding):
    torch.manual_seed(0)
    table = nn.EmbeddingBag(7, 3, mode=mode, sparse=True, padding_idx=padding)
    shared = ShardedEmbedding(table, 0, 1, None, torch.device("cpu"))
    ids, offsets = torch.tensor([2, 5, 5, 0, 2, 6]), torch.tensor([0, 3, 4])
    table.sparse = False
    ours, theirs = shared(ids, offsets), table(ids, offsets)
    assert torch.equal(ours, theirs)
    for output in (ours, theirs):
        (output * torch.arange(3.0)).sum().backward()
    shared.rows.push()
    torch.testing.assert_close(shared.weight.grad.to_dense(), table.weight.grad)


def test_outside_a_placed_job_gradients_are_dense():
    model = Chain()
    dense_fallback(model)
    model(torch.tensor([[1, 2]])).sum().backward()
    assert not model.table.weight.grad.is_sparse
