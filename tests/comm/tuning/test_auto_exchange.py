"""The choice of an exchange: rank 0's figures decide on every rank, the exact sum stays unless another saves enough."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.communication.__main__ import PARAMETERS, measure
from benchmarks.communication.namespaces import Network, missing
from elastic_core.comm.algorithms import create, leaves_layers_out
from elastic_core.comm.tuning.auto_exchange import TRIED_BESIDE, AutoExchange
from elastic_core.comm.tuning.trial import TIMED_STEPS, WARM_STEPS
from tests.comm import ranks

CPU = torch.device("cpu")
A_TRIAL = WARM_STEPS + TIMED_STEPS


class TwoLayers(nn.Module):
    """Of as many parameters, the first of which not every rank has to reach in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(128, 128), nn.Linear(128, 128)

    @property
    def weight(self) -> Tensor:
        return self.last.weight

    def forward(self, values: Tensor) -> Tensor:
        return self.first(values) + self.last(values)


class Chosen:
    """A model trained until the choice, told that a step under each algorithm takes so long, none of it computing."""

    def __init__(
        self, among: tuple[str, ...], seconds: Mapping[str, float], state: Mapping[str, Tensor] = {}, first: str = ""
    ) -> None:
        torch.manual_seed(0)
        partly = leaves_layers_out("auto", among)
        self.model = DistributedDataParallel(
            TwoLayers() if partly else nn.Linear(128, 128), gradient_as_bucket_view=True, find_unused_parameters=partly
        )
        own = dist.new_group() if partly else None
        exchange = create("auto", CPU, own, among=among or ("allreduce",), first=first)
        assert isinstance(exchange, AutoExchange)
        exchange.attach(self.model)
        exchange.load_state_dict(state)
        self.exchange, self.order, self._seconds = exchange, [exchange.in_force], seconds
        self.steps = 0

    def step(self) -> Tensor:
        """The exchanged gradient."""
        self.model.zero_grad(set_to_none=True)
        self.model(torch.full((2, 128), 1.0 + dist.get_rank())).sum().backward()
        self.exchange.take_wait_seconds()
        seconds = self._seconds.get(self.exchange.in_force, 1.0)
        self.steps += 1
        if self.exchange.stepped(seconds, 0.9 * seconds):
            self.order.append(self.exchange.in_force)
        return self.model.module.weight.grad

    def run(self) -> None:
        while not self.exchange.chosen:
            self.step()


def fastest(rank: int, world: int) -> None:
    # Rank 1 would choose another: it is not asked.
    seconds = {"allreduce": 1.0, "fp16": 0.5, "bf16": 0.4, "bytegrad": 0.3, "powersgd": 0.35}
    told = seconds if rank == 0 else {**seconds, "allreduce": 1e-6}
    chosen = Chosen(("fp16", "bf16", "bytegrad", "powersgd"), told)
    chosen.run()
    names = [None] * world
    dist.all_gather_object(names, (chosen.order, chosen.exchange.tried))
    assert all(name == names[0] for name in names)
    tried = chosen.order[:-1]
    assert tried[0] == "allreduce", "the exact sum is tried first"
    assert len(tried) == len(set(tried)) == 1 + TRIED_BESIDE
    assert not {"fp16", "bf16"} <= set(tried), "which send the same bytes"
    assert chosen.steps == A_TRIAL * len(tried)
    assert chosen.exchange.in_force == min(tried, key=lambda name: seconds[name])
    figures = {figures.algorithm: figures for figures in chosen.exchange.tried}
    assert set(figures) == {"allreduce", "fp16", "bf16", "bytegrad", "powersgd"}
    assert all(figures[name].measured_seconds == seconds[name] for name in tried)
    assert all(f.predicted_seconds > 0 and f.predicted_bytes > 0 for f in figures.values())
    assert figures["allreduce"].measured_bytes == pytest.approx(figures["allreduce"].predicted_bytes, rel=0.1)
    assert {cost.algorithm for cost in chosen.exchange.costs()} == set(figures)
    assert chosen.exchange.link.seconds_per_byte > 0
    chosen.step()
    chosen.exchange.close()


@pytest.mark.parametrize("world", [2, 3])
def test_the_fastest_of_those_tried_is_kept_on_every_rank(world, tmp_path):
    ranks.run(fastest, tmp_path, world)


def counted_with(rank: int, world: int) -> None:
    among = ("fp16", "bf16", "bytegrad", "powersgd")
    seconds = {"allreduce": 1.0, "fp16": 0.5, "bf16": 0.5, "bytegrad": 0.3, "powersgd": 0.35}
    by_prediction, other = Chosen(among, seconds), Chosen(among, seconds, first="bf16")
    for chosen in (by_prediction, other):
        chosen.run()
    assert by_prediction.order[1] != "bf16"
    assert other.order[1:3] == ["bf16", by_prediction.order[1]], "then the one that promises the most"
    assert other.exchange.in_force == min(other.order[1:3], key=lambda name: seconds[name]), "what is measured counts"
    unknown = Chosen(among, seconds, first="local_sgd")
    unknown.run()
    assert unknown.order == by_prediction.order
    for chosen in (by_prediction, other, unknown):
        chosen.exchange.close()


def test_what_the_decision_counted_with_is_tried_first(tmp_path):
    ranks.run(counted_with, tmp_path, 2)


def partly(rank: int, world: int) -> None:
    seconds = {"allreduce": 1.0, "partial_backward": 0.5}
    chosen = Chosen(("partial_backward",), seconds)
    assert chosen.exchange.of_whole_batch()
    chosen.run()
    assert chosen.order == ["allreduce", "partial_backward", "partial_backward"]
    assert not chosen.exchange.of_whole_batch()
    assert {key.split("/")[0] for key in chosen.exchange.state_dict()} == {"partial_backward"}
    assert torch.equal(chosen.step()[0], torch.full((128,), 2.0 * (1 + rank) * 1.0 + 2.0 * (2 - rank)))
    chosen.exchange.close()


def test_ranks_that_compute_parts_are_tried_where_that_is_allowed(tmp_path):
    ranks.run(partly, tmp_path, 2)


def not_worth_it(rank: int, world: int) -> None:
    chosen = Chosen(("fp16", "bytegrad"), {"allreduce": 1.0, "fp16": 0.97, "bytegrad": 0.96})
    chosen.run()
    assert chosen.order == ["allreduce", *chosen.order[1:-1], "allreduce"]
    assert len(chosen.order) == 4, "both were tried"
    want = sum(torch.full((128,), 2.0 * (1 + other)) for other in range(world))
    assert torch.equal(chosen.step()[0], want), "and it is exact"
    chosen.exchange.close()


def test_the_exact_sum_stays_where_no_other_saves_a_twentieth(tmp_path):
    ranks.run(not_worth_it, tmp_path, 2)


def nothing_waits(rank: int, world: int) -> None:
    torch.manual_seed(0)
    chosen = Chosen(("bytegrad",), {})
    for _ in range(A_TRIAL):
        chosen.model(torch.ones(2, 128)).sum().backward()
        chosen.exchange.stepped(1.0, 0.01)
    assert chosen.exchange.chosen
    assert chosen.exchange.in_force == "allreduce"
    (exact,) = chosen.exchange.tried
    assert (exact.measured_seconds, exact.predicted_seconds) == (1.0, None), "no link was probed, and no other tried"
    assert chosen.exchange.link is None
    assert {cost.algorithm for cost in chosen.exchange.costs()} == {"allreduce", "bytegrad"}, "for other slots"


def test_where_nobody_waits_nothing_is_tried(tmp_path):
    ranks.run(nothing_waits, tmp_path, 2)


def one_candidate(rank: int, world: int) -> None:
    chosen = Chosen((), {})
    chosen.step()
    assert chosen.exchange.chosen
    assert (chosen.exchange.in_force, chosen.exchange.tried) == ("allreduce", ())


def test_with_the_exact_sum_alone_there_is_no_choice(tmp_path):
    ranks.run(one_candidate, tmp_path, 2)


def kept_errors(rank: int, world: int) -> None:
    seconds = {"allreduce": 1.0, "powersgd": 0.1}
    before = Chosen(("powersgd",), seconds)
    before.run()
    state = {key: value.clone() for key, value in before.exchange.state_dict().items()}
    assert {key.split("/")[0] for key in state} == {"powersgd"}
    after, anew = Chosen(("powersgd",), seconds, state), Chosen(("powersgd",), seconds)
    assert after.exchange.state_dict().keys() == state.keys(), "not lost by a checkpoint before it is used again"
    for chosen in (after, anew):
        while chosen.exchange.in_force != "powersgd":
            chosen.step()
    assert torch.equal(after.exchange.state_dict()["powersgd/error/weight"], state["powersgd/error/weight"])
    assert anew.exchange.state_dict() == {}


def test_errors_from_a_checkpoint_go_to_the_algorithm_that_kept_them(tmp_path):
    ranks.run(kept_errors, tmp_path, 2)


why = missing()


@pytest.mark.nightly
@pytest.mark.skipif(why is not None, reason=f"no network namespaces here: {why}")
def test_on_a_slow_link_it_is_a_cheaper_one():
    """400 Mbit carry the gradients of a step in two seconds, that take a third of one to compute."""
    auto = measure(Network("400 Mbit", 400e6), 2, ("auto",), seconds=0.0, steps=3)["auto"]
    assert auto.chosen != "allreduce"
    assert auto.sent_bytes < 0.6 * 4 * PARAMETERS
