"""Updates of rows that no step follows, since a checkpoint comes first: as large as that step's would have been."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from elastic_core.domain import Allocation, Layout, PlacedStage, Slot
from elastic_core.spec.parts.job_work import Batch
from elastic_core.train.gradients.rates import Rates
from elastic_core.train.gradients.stage_gradients import StageGradients
from elastic_core.train.layouts import Declared
from elastic_core.train.parallel.group import Group
from elastic_core.train.placed.stage_part import cut_stage
from elastic_core.train.placed.stage_places import StagePlaces

IDS = torch.tensor([[0, 3, 3], [5, 0, 1]])
BATCH = Batch(min=4, max=4)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(7, 3, sparse=True, mode="sum")
        self.head = nn.Linear(3, 1)

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.head(self.table(ids))
        return output


class Stage:
    """All layers on one slot, with late updates. `alone`: the model as one process would have it."""

    def __init__(self, rate) -> None:
        torch.manual_seed(0)
        model = Chain()
        self.alone = copy.deepcopy(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        group = Group()
        placed = (PlacedStage(layers=(0, 2), type="cpu", num_slots=1),)
        places = StagePlaces(
            group, Allocation(slots=(Slot("n", 0, "cpu"),), global_batch=4, layout=Layout(), stages=placed)
        )
        declared = Declared(layers=lambda model: [model.table, model.head], late_embedding_updates=True)
        self.part = cut_stage(model, self.optimizer, places, declared, torch.device("cpu"), nullcontext)
        self.gradients = StageGradients(self.part, self.optimizer, group, places)

    @property
    def table(self) -> Tensor:
        return self.part.embeddings["table"].weight.detach()

    def backward(self) -> None:
        """Of the first step: its gradients of rows leave."""
        self.part.model(IDS).sum().backward()
        self.gradients.add_losses([torch.zeros(())])
        self.gradients.finish()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def table_by_hand(stage: Stage, rate: float, clip: float = float("inf")) -> Tensor:
    stage.alone(IDS).sum().backward()
    table = stage.alone.table.weight
    grad = table.grad.to_dense()
    norm = torch.cat([grad.flatten(), *(p.grad.flatten() for p in stage.alone.head.parameters())]).norm()
    return table.detach() - rate * grad * min(1.0, clip / float(norm))


@pytest.mark.parametrize("clip", [0.05, 1000.0])
def test_they_are_clipped_by_the_norm_of_their_steps_whole_gradient(clip):
    stage = Stage(0.1)
    stage.backward()
    stage.gradients.clip(clip, stage.gradients.sqr_norm())
    stage.step()
    assert torch.equal(stage.table, stage.alone.table.weight.detach())  # they are under way
    stage.gradients.settle()
    torch.testing.assert_close(stage.table, table_by_hand(stage, 0.1, clip), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_they_are_made_at_the_rate_of_their_step_and_leave_the_planned_one(kind):
    stage = Stage(kind(0.1))
    rate = stage.optimizer.param_groups[0]["lr"]
    rates = Rates(stage.optimizer, None, lambda _progress: 0.5, BATCH)
    stage.backward()
    with rates.applied(4, 0.0, None):
        stage.step()
    stage.gradients.settle()
    torch.testing.assert_close(stage.table, table_by_hand(stage, 0.05))
    assert stage.optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.1)
