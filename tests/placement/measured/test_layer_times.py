"""Layers of a real model, timed: what is measured, by counting and by bytes; no test waits for a clock to agree."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from elastic_core.errors import UserError
from elastic_core.placement.measured.layer_times import fitted_alpha, measure


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(100, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
        self.unused = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.mlp(self.table(x)).sum()
        return result


def test_layers_are_measured_alone_forward_and_backward() -> None:
    model, threads = Recommender(), torch.get_num_threads()
    calls: list[int] = []
    grads: list[int] = []
    model.table.register_forward_hook(lambda *_: calls.append(torch.get_num_threads()))
    model.table.weight.register_hook(lambda grad: grads.append(grad.numel()))
    table, mlp = measure(model, lambda: model(torch.randint(100, (8, 4))), ["table", "mlp"], (1, 2), repeats=3)
    assert calls == [threads, *[1] * 4, *[2] * 4]  # one real pass, then a warm-up and three repeats on each
    assert grads == [1600] * 8
    assert torch.get_num_threads() == threads
    assert model.table.weight.grad is None
    assert (table.kind, mlp.kind) == ("embedding", "dense")
    assert table.weight_bytes == 4 * 1600 * 4
    assert table.activation_bytes == 8 * 16 * 4
    assert mlp.activation_bytes == 8 * 4
    assert set(table.seconds) == {1, 2}
    assert min(table.seconds.values()) > 0


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.95, 1.0])
def test_alpha_is_found_again_in_times_that_follow_it(alpha: float) -> None:
    assert fitted_alpha({k: 7.0 * (1 - alpha + alpha / k) for k in (1, 2, 4)}) == pytest.approx(alpha)


def test_times_that_grow_with_threads_share_nothing_out_and_one_measurement_says_nothing() -> None:
    assert fitted_alpha({1: 1.0, 2: 1.4}) == 0.0
    assert fitted_alpha({1: 1.0, 2: 0.4}) == 1.0
    assert fitted_alpha({1: 1.0}) == 1.0


def test_a_layer_that_is_not_there_or_not_called_is_refused() -> None:
    model = Recommender()
    forward = lambda: model(torch.randint(100, (8, 4)))  # noqa: E731
    with pytest.raises(UserError, match=r"no layer 'tabel'\. Did you mean 'table'\?"):
        measure(model, forward, ["tabel"], (1,), 1)
    with pytest.raises(UserError, match="did not call layer 'unused'"):
        measure(model, forward, ["unused"], (1,), 1)
    with pytest.raises(UserError, match="1 has to be among them"):
        measure(model, forward, ["mlp"], (2,), 1)
