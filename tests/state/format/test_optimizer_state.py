"""Optimizer state and random state survive as data: what follows a restore is what would have followed, bit for bit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.state.format.checkpoint_format import read_manifest, read_tensors, write_manifest, write_shard
from elastic_core.state.format.optimizer_state import capture_rng, flatten_optimizer, load_optimizer, restore_rng
from elastic_core.state.stores.store import CheckpointStore
from tests.state.builders import HEADER, URI, same_bits

Maker = Callable[[nn.Module], torch.optim.Optimizer]


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))


def two_groups(net: nn.Module) -> list[dict[str, object]]:
    weights = [p for p in net.parameters() if p.ndim > 1]
    rest = [p for p in net.parameters() if p.ndim <= 1]
    return [{"params": weights, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 0.003}]


OPTIMIZERS: dict[str, Maker] = {
    "SGD": lambda net: torch.optim.SGD(net.parameters(), lr=0.1),
    "SGD with momentum": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.01, amsgrad=True),
    "Adam with a tensor as rate": lambda net: torch.optim.Adam(net.parameters(), lr=torch.tensor(0.01), foreach=False),
    "AdamW in two groups": lambda net: torch.optim.AdamW(two_groups(net), lr=0.01),
    "Adagrad": lambda net: torch.optim.Adagrad(net.parameters(), lr=0.1),
    "RMSprop": lambda net: torch.optim.RMSprop(net.parameters(), lr=0.01, momentum=0.5, centered=True),
    "Adadelta": lambda net: torch.optim.Adadelta(net.parameters()),
    "Adamax": lambda net: torch.optim.Adamax(net.parameters()),
    "NAdam": lambda net: torch.optim.NAdam(net.parameters()),
    "RAdam": lambda net: torch.optim.RAdam(net.parameters()),
    "Rprop": lambda net: torch.optim.Rprop(net.parameters()),
    "ASGD": lambda net: torch.optim.ASGD(net.parameters()),
    "LBFGS": lambda net: torch.optim.LBFGS(net.parameters(), max_iter=3),
    "Adafactor": lambda net: torch.optim.Adafactor(net.parameters()),
}


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_training_goes_on_bit_for_bit_after_a_checkpoint(folder_store: CheckpointStore, make: Maker) -> None:
    net = model()
    optimizer = make(net)
    train(net, optimizer, 3, seed=1)
    state = flatten_optimizer(optimizer, net.named_parameters())
    weights = {f"model/{name}": value for name, value in net.state_dict().items()}
    info = write_shard(folder_store, URI, 0, {**weights, **state.tensors})
    write_manifest(folder_store, URI, [info], HEADER, {"optim": state.scalars})

    other = model(seed=9)
    resumed = make(other)
    manifest = read_manifest(folder_store, URI)
    tensors = read_tensors(folder_store, manifest)
    other.load_state_dict({name: tensors[f"model/{name}"] for name in other.state_dict()})
    load_optimizer(resumed, other.named_parameters(), tensors, manifest.scalars["optim"])
    train(net, optimizer, 3, seed=2)
    train(other, resumed, 3, seed=2)

    for name, value in net.state_dict().items():
        assert same_bits(value, other.state_dict()[name]), name
    again, expected = (flatten_optimizer(o, n.named_parameters()) for o, n in ((resumed, other), (optimizer, net)))
    assert again.scalars == expected.scalars
    assert again.tensors.keys() == expected.tensors.keys()
    assert all(same_bits(again.tensors[name], expected.tensors[name]) for name in expected.tensors)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_hyperparameters_keep_their_values_and_types(make: Maker) -> None:
    net = model()
    optimizer = make(net)
    state = flatten_optimizer(optimizer, net.named_parameters())
    resumed = make(net)
    for group in resumed.param_groups:
        group.update({key: None for key in group if key != "params"})
    load_optimizer(resumed, net.named_parameters(), state.tensors, json.loads(json.dumps(state.scalars)))
    for group, expected in zip(resumed.param_groups, optimizer.param_groups, strict=True):
        assert group.keys() == expected.keys()
        for key in expected:
            assert type(group[key]) is type(expected[key]), key
            assert key == "params" or group[key] == expected[key], key


def test_state_is_known_by_name_not_by_order() -> None:
    net, other = model(), model()
    optimizer = torch.optim.AdamW(two_groups(net), lr=0.01)
    train(net, optimizer, 2, seed=1)
    state = flatten_optimizer(optimizer, net.named_parameters())
    assert "optim/0.weight/exp_avg" in state.tensors
    assert "optim/2.bias/step" in state.tensors
    turned = [{**group, "params": group["params"][::-1]} for group in reversed(two_groups(other))]
    resumed = torch.optim.AdamW(turned, lr=0.5)
    load_optimizer(resumed, other.named_parameters(), state.tensors, state.scalars)
    for (name, mine), (_, theirs) in zip(other.named_parameters(), net.named_parameters(), strict=True):
        assert same_bits(resumed.state[mine]["exp_avg"], optimizer.state[theirs]["exp_avg"]), name
    assert [group["weight_decay"] for group in resumed.param_groups] == [0.0, 0.1]
    assert [group["lr"] for group in resumed.param_groups] == [0.003, 0.01]


def test_state_wider_than_its_parameter_is_not_rounded() -> None:
    """torch's own load_state_dict would cast the float32 state of a bfloat16 parameter to bfloat16."""
    net = model().bfloat16()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for parameter in net.parameters():
        optimizer.state[parameter]["master"] = torch.randn(parameter.shape)
        optimizer.state[parameter]["nested"] = {"list": [torch.tensor(0.1, dtype=torch.float64)], "n": (1, None)}
    state = flatten_optimizer(optimizer, net.named_parameters())
    resumed = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    load_optimizer(resumed, net.named_parameters(), state.tensors, json.loads(json.dumps(state.scalars)))
    for parameter in net.parameters():
        assert same_bits(resumed.state[parameter]["master"], optimizer.state[parameter]["master"])
        assert resumed.state[parameter]["nested"] == optimizer.state[parameter]["nested"]


def test_a_restored_optimizer_shares_no_memory_with_what_it_was_restored_from() -> None:
    net, other = model(), model()
    optimizer, resumed = (torch.optim.Adam(n.parameters()) for n in (net, other))
    train(net, optimizer, 2, seed=1)
    state = flatten_optimizer(optimizer, net.named_parameters())
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    load_optimizer(resumed, other.named_parameters(), state.tensors, state.scalars)
    train(other, resumed, 2, seed=1)
    assert all(same_bits(before[name], tensor) for name, tensor in state.tensors.items())


def test_numbers_that_json_does_not_know_are_kept() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.param_groups[0]["best"] = [float("inf"), float("-inf")]
    state = flatten_optimizer(optimizer, net.named_parameters())
    resumed = torch.optim.SGD(net.parameters(), lr=0.1)
    load_optimizer(
        resumed, net.named_parameters(), state.tensors, json.loads(json.dumps(state.scalars, allow_nan=False))
    )
    assert resumed.param_groups[0]["best"] == [float("inf"), float("-inf")]


def test_another_class_is_refused_with_the_way_out() -> None:
    net = model()
    state = flatten_optimizer(torch.optim.SGD(net.parameters()), net.named_parameters())
    with pytest.raises(UserError, match=r"optimizer is SGD, the task's is Adam: .*warm start"):
        load_optimizer(torch.optim.Adam(net.parameters()), net.named_parameters(), state.tensors, state.scalars)


def test_other_parameters_are_refused_by_name() -> None:
    net = model()
    state = flatten_optimizer(torch.optim.SGD(net.parameters()), net.named_parameters())
    larger = nn.Sequential(*net, nn.Linear(3, 3))
    with pytest.raises(UserError, match=r"only here \['3\.bias', '3\.weight'\]"):
        load_optimizer(torch.optim.SGD(larger.parameters()), larger.named_parameters(), state.tensors, state.scalars)


def test_an_optimizer_over_another_model_is_refused() -> None:
    with pytest.raises(UserError, match="is none of the model's"):
        flatten_optimizer(torch.optim.SGD(model().parameters()), model().named_parameters())


def test_state_that_is_no_data_is_refused_by_name() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters())
    optimizer.state[next(net.parameters())]["hook"] = print
    with pytest.raises(UserError, match=r"keeps a builtin_function_or_method as optim/0\.weight/hook"):
        flatten_optimizer(optimizer, net.named_parameters())


def test_a_missing_tensor_is_named() -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    train(net, optimizer, 1, seed=0)
    state = flatten_optimizer(optimizer, net.named_parameters())
    tensors = {name: value for name, value in state.tensors.items() if name != "optim/0.weight/step"}
    with pytest.raises(CorruptCheckpoint, match=r"optim/0\.weight/step"):
        load_optimizer(optimizer, net.named_parameters(), tensors, state.scalars)


def drawn() -> tuple[object, ...]:
    return (torch.rand(3).tolist(), np.random.rand(3).tolist(), np.random.randn(), random.random(), random.gauss(0, 1))


def test_random_numbers_go_on_where_they_were(folder_store: CheckpointStore) -> None:
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    drawn()  # leaves a cached Gaussian in NumPy and Python
    info = write_shard(folder_store, URI, 0, capture_rng(4))
    write_manifest(folder_store, URI, [info], HEADER, {})
    expected = drawn()
    tensors = read_tensors(folder_store, read_manifest(folder_store, URI))
    assert restore_rng(tensors, 4) == {"torch", "numpy", "python"}
    assert drawn() == expected
    assert restore_rng(tensors, 5) == frozenset()


def test_a_random_state_of_another_size_is_refused_before_anything_is_touched() -> None:
    states = {**capture_rng(0), "rng/python/0": torch.zeros(3, dtype=torch.uint8)}
    drawn()
    expected = random.getstate()
    with pytest.raises(CorruptCheckpoint, match="rng/python/0 has 3 bytes"):
        restore_rng(states, 0)
    assert random.getstate() == expected


def test_random_state_is_bytes_of_a_fixed_layout() -> None:
    assert {name: (tensor.dtype, tensor.ndim) for name, tensor in capture_rng(1).items()} == {
        f"rng/{kind}/1": (torch.uint8, 1) for kind in ("torch", "numpy", "python")
    }
