"""A chain of units is cut into stages that keep their names, and only where nothing is lost by it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elastic_core.errors import UserError
from elastic_core.train.checkpoint.partitioned_state import merged_scalars, of_parameters
from elastic_core.train.gradients.pipe import micro_batch_size, shapes_between
from elastic_core.train.layouts import resolve
from elastic_core.train.parallel.loss_calls import called_with
from elastic_core.train.parallel.partitioning import filled, skeleton_of
from elastic_core.train.parallel.stages import Stage, check_units, split
from elastic_core.train.task import NoParams
from examples.bytes_lm import BytesLM
from tests.train.tasks import Regression

PARAMS = BytesLM.Params(width=8, depth=3, heads=2, context=8)


def chain(sizes: list[int]) -> nn.Module:
    return nn.Sequential(*(nn.Linear(size, 1, bias=False) for size in sizes))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(1, 7))
def test_the_fullest_stage_is_as_small_as_it_can_be(sizes, num_stages) -> None:
    model, units = chain(sizes), [str(i) for i in range(len(sizes))]
    if num_stages > len(sizes):
        with pytest.raises(UserError, match=f"of {len(sizes)} units .* cannot be split into {num_stages} stages"):
            split(model, units, num_stages)
        return
    stages = split(model, units, num_stages)
    assert [name for stage in stages for name in stage] == units
    assert len(stages) == num_stages
    assert all(stages)
    loads = [1 + size for size in sizes]  # a unit without parameters costs something, too
    best = min(
        max(sum(loads[a:b]) for a, b in itertools.pairwise((0, *cuts, len(loads))))
        for cuts in itertools.combinations(range(1, len(loads)), num_stages - 1)
    )
    assert max(sum(loads[int(name)] for name in stage) for stage in stages) == best


def test_stages_one_after_another_are_the_model_under_the_same_names() -> None:
    task = BytesLM(PARAMS)
    model = task.model()
    inputs = torch.randint(256, (2, 8))
    want, names = model(inputs), dict(model.named_parameters())
    stages = [Stage(model, units) for units in split(model, task.pipeline_units(model), 3)]
    values = inputs
    for stage in stages:
        values = stage(values)
    assert torch.equal(values, want)
    held = [item for stage in stages for item in stage.named_parameters()]
    assert len(held) == len(names)
    assert all(names[name] is parameter for name, parameter in held)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        (["embed", "blocks"], "head.0.weight lies in no unit"),
        (["embed", "blocks", "blocks.1", "head"], r"names \['blocks.1'\], which lie in other units"),
        (["embed", "bloks", "head"], r"names \['bloks'\], which the model does not have"),
    ],
)
def test_units_that_lose_a_parameter_are_refused(units, message) -> None:
    with pytest.raises(UserError, match=message):
        check_units(BytesLM(PARAMS).model(), units)


def test_a_parameter_shared_by_two_units_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    with pytest.raises(UserError, match=r"1.weight is shared by the units 0 and 1"):
        check_units(model, ["0", "1"])


def test_a_skeleton_has_no_memory_of_its_own_and_takes_any_weights() -> None:
    model = BytesLM(PARAMS).model()
    skeleton = skeleton_of(model)
    assert all(parameter.untyped_storage().nbytes() <= 8 for parameter in skeleton.parameters())
    again = filled(skeleton, model.state_dict())
    inputs = torch.randint(256, (2, 8))
    assert torch.equal(again(inputs), model(inputs))
    assert all(parameter.untyped_storage().nbytes() <= 8 for parameter in skeleton.parameters())


def test_a_plan_is_applied_to_what_a_stage_holds_of_it() -> None:
    task = BytesLM(PARAMS)
    model = task.model()
    plan = task.tensor_plan(model)
    assert set(resolve(plan, Stage(model, ["embed", "blocks.2"]))) == {
        "blocks.2.attention", "blocks.2.mlp.0", "blocks.2.mlp.2",
    }  # fmt: skip
    assert resolve(plan, Stage(model, ["head"])) == {}


def test_a_loss_tells_what_it_calls_the_model_with_without_a_model() -> None:
    batch = [torch.randint(256, (2, 8)), torch.randint(256, (2, 8))]
    (inputs,) = called_with(BytesLM(PARAMS).loss, batch)
    assert inputs is batch[0]
    with pytest.raises(UserError, match="this one does not call it"):
        called_with(lambda _model, batch: batch[0].sum(), batch)
    with pytest.raises(UserError, match=r"with \['int'\] and \['mask'\]"):
        called_with(lambda model, _batch: model(3, mask=None), batch)


def test_shapes_between_stages_are_known_without_running_them() -> None:
    class Whole:
        skeleton = skeleton_of(BytesLM(PARAMS).model())
        stages = (("embed", "blocks.0"), ("blocks.1", "blocks.2", "head"))

    torch.manual_seed(1)
    before = torch.get_rng_state()
    inputs = (torch.zeros(3, 8, dtype=torch.int64),)
    shapes = shapes_between(Whole, inputs, torch.enable_grad, torch.device("cpu"))  # type: ignore[arg-type]
    assert [(tuple(t.shape), t.requires_grad) for (t,) in shapes] == [
        ((3, 8), False), ((3, 8, 8), True), ((3, 8, 256), True),
    ]  # fmt: skip
    assert torch.equal(torch.get_rng_state(), before)


@contextmanager
def autocast(device: str) -> Iterator[None]:
    """As torch.autocast does, which refuses devices that this machine does not have."""
    torch.set_autocast_dtype(device, torch.bfloat16)
    torch.set_autocast_enabled(device, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, False)


@pytest.mark.parametrize(("device", "of_softmax"), [("cpu", torch.bfloat16), ("cuda", torch.float32)])
def test_types_between_stages_are_those_that_autocast_gives_on_the_device(device: str, of_softmax: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(-1))
    model.requires_grad_(False)  # torch notes no gradients of a device that this machine does not have

    class Whole:
        skeleton = skeleton_of(model)
        stages = (("0", "1"), ("2",), ("3",))

    found = shapes_between(Whole, (torch.zeros(3, 4),), lambda: autocast(device), torch.device(device))  # type: ignore[arg-type]
    assert [t.dtype for (t,) in found] == [torch.float32, torch.bfloat16, torch.bfloat16, of_softmax]


@given(st.integers(0, 500), st.integers(2, 8), st.none() | st.integers(1, 50))
def test_micro_batches_fill_the_pipeline_as_far_as_there_are_samples(share, stages, most) -> None:
    size = micro_batch_size(share, stages, most)
    assert 1 <= size <= (most or max(share, 1))
    assert -(-share // size) >= min(share, 4 * stages)


def test_optimizer_scalars_of_stages_are_put_together_and_taken_apart() -> None:
    def part(names: list[str], lr: float) -> dict[str, object]:
        state = {name: {"step": {"tensor": f"optim/{name}/step"}} for name in names}
        groups = [
            {"params": [n for n in names if n != "b"], "options": {"lr": lr}},
            {"params": [n for n in names if n == "b"], "options": {"lr": 9}},
        ]
        return {"optimizer": {"class": "SGD", "groups": groups, "state": state, "shared": {}}, "world": 2}

    whole = merged_scalars([part(["a"], 1), part(["b", "c"], 1)], [["a", "c"], ["b"]])
    assert [group["params"] for group in whole["optimizer"]["groups"]] == [["a", "c"], ["b"]]
    assert set(whole["optimizer"]["state"]) == {"a", "b", "c"}
    mine = of_parameters(whole["optimizer"], ["c"])
    assert [group["params"] for group in mine["groups"]] == [["c"], []]
    assert set(mine["state"]) == {"c"}


def test_a_task_that_declares_nothing_admits_shards_only() -> None:
    task = Regression(NoParams())
    model = nn.Linear(1, 1)
    assert (task.tensor_plan(model), task.tensor_sizes(), task.pipeline_units(model)) == ({}, (1,), ())
    assert task.shardable
