"""Where samples have different numbers of tokens, a step's loss is the mean over the tokens of its whole batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elastic_core.domain import Allocation, Layout, Slot
from elastic_core.errors import UserError
from elastic_core.train.data.batches import MicroBatch
from elastic_core.train.data.item_weights import ItemWeights
from elastic_core.train.gradients.gradients import Gradients
from elastic_core.train.parallel.group import Group
from tests.train.adapters.trained import assert_resizes_change_no_weight

PADDING = -1.0
PADDED = "tests.train.tasks:padded"


def micro_batches(*sizes: int) -> list[MicroBatch]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        MicroBatch(start, np.arange(start, start + size), size / sum(sizes), last=start + size == sum(sizes))
        for start, size in zip(starts, sizes, strict=True)
    ]


def tokens(batch: Tensor) -> int:
    return int((batch != PADDING).sum())


def item_weights(count, **layout: int) -> ItemWeights:
    slots = (Slot(node="n", index=0, type="cpu"),)
    allocation = Allocation(slots=slots, global_batch=1, layout=Layout(**layout))
    return ItemWeights(count, allocation, Group().gather_vectors)


def weights(count, *batches: Tensor) -> list[float]:
    step = zip(micro_batches(*(len(batch) for batch in batches)), batches, strict=True)
    return [micro.weight for micro, _ in item_weights(count).of_step(step)]


SHORT, LONG = torch.tensor([[1.0, PADDING, PADDING]] * 2), torch.tensor([[1.0, 2.0, 3.0]] * 2)
NOTHING = torch.full((1, 3), PADDING)


def test_a_micro_batch_weighs_by_its_tokens() -> None:
    assert weights(tokens, SHORT, LONG) == [2 / 8, 6 / 8]
    assert weights(tokens, SHORT, NOTHING) == [1.0, 0.0]


def test_it_weighs_by_its_samples_where_nothing_is_counted() -> None:
    assert weights(lambda _: None, SHORT, LONG, NOTHING) == [2 / 5, 2 / 5, 1 / 5]
    assert weights(lambda batch: tokens(batch) if batch is LONG else None, SHORT, LONG) == [1 / 2, 1 / 2]
    assert weights(tokens, NOTHING, NOTHING) == [1 / 2, 1 / 2]


def test_a_stand_in_counts_for_nothing() -> None:
    stand_in = MicroBatch(0, np.arange(2), 0.0, last=True)
    ((micro, _),) = item_weights(tokens).of_step([(stand_in, LONG)])
    assert micro.weight == 0


@pytest.mark.parametrize("fixed_parts", [False, True])
def test_a_micro_batch_without_a_token_leaves_the_gradient_and_its_norms_whole(fixed_parts: bool) -> None:
    model = nn.Linear(1, 1)
    gradients = Gradients(model, Group(), "allreduce", fixed_parts=fixed_parts)
    plain, nothing = micro_batches(2, 1)
    step = [(MicroBatch(0, plain.indices, plain.weight, False, 0, True, True), SHORT),
            (MicroBatch(2, nothing.indices, nothing.weight, True, 1, True, True), NOTHING)]  # fmt: skip
    for micro, batch in item_weights(tokens).of_step(step):
        gradients.expect(micro)
        gradients.backward(model(batch[batch != PADDING][:, None]).sum() / max(1, tokens(batch)), micro)
    local = gradients.finish()
    assert torch.equal(model.weight.grad, torch.ones(1, 1))
    assert [part.samples for part in local.micro_parts] == ([] if fixed_parts else [2])
    assert local.fixed_parts == ((2.0, 0.0) if fixed_parts else (0.0, 0.0))


def test_a_resized_job_of_padded_samples_ends_with_the_weights_of_an_undisturbed_one(new_job):
    batch = {"min": 30, "max": 30, "max_per_slot": 8}
    assert_resizes_change_no_weight(new_job, PADDED, (1, 3), atol=1e-5, batch=batch)


def test_so_does_one_that_is_resized_to_parameter_servers(new_job):
    batch, served = {"min": 30, "max": 30, "max_per_slot": 8}, (Layout(data=1, servers=2), Layout(data=2, servers=1))
    assert_resizes_change_no_weight(new_job, PADDED, served, atol=1e-5, batch=batch, sync="either")


def test_a_layout_without_micro_batches_of_its_own_is_refused_in_words() -> None:
    with pytest.raises(UserError, match=r"count_items=.*pipeline"):
        item_weights(tokens, pipeline=2)
