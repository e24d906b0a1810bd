"""The choice where averages of weights are admitted: a trial ends with one model, and what is kept goes on."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elastic_core.comm.algorithms import averaging_class, create
from elastic_core.comm.averaging.weight_averaging import INTERVAL
from elastic_core.comm.tuning.auto_exchange import MOST_STEPS, MOST_STEPS_OF_AVERAGES, AutoExchange
from elastic_core.comm.tuning.trial import INTERVAL_TRIAL_STEPS, TIMED_STEPS, WARM_STEPS
from elastic_core.train.checkpoint.training_state import averaging_tensors, rank_tensors, restore_rank
from tests.comm import plain, ranks

CPU = torch.device("cpu")
A_TRIAL = WARM_STEPS + TIMED_STEPS
ALL = (*plain.AVERAGING, "async_average")
AT_INTERVALS = {"local_sgd", "diloco", "async_average"}


class Weighed:
    """A model that Adam trains until the choice, told that a step under each algorithm takes so long. Most of one under
    the exact sum is waiting, so that everything promises to be faster."""

    def __init__(self, among: tuple[str, ...], seconds: Mapping[str, float], first: str = "") -> None:
        torch.manual_seed(0)
        self.rank = dist.get_rank()
        self.model = DistributedDataParallel(nn.Linear(64, 64), gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        exchange = create("auto", CPU, among=among, beside=dist.new_group(), first=first)
        assert isinstance(exchange, AutoExchange)
        exchange.attach(self.model)
        exchange.follow(self.optimizer)
        self.exchange, self.order, self._seconds = exchange, [exchange.in_force], seconds
        self.steps = 0

    def step(self) -> None:
        """Of the mean loss over the rank's own samples, of as many as the others have."""
        self.steps += 1
        inputs = torch.randn(4, 64, generator=torch.Generator().manual_seed(100 * self.steps + self.rank))
        (self.model(inputs).square().mean() / dist.get_world_size()).backward()
        self.exchange.take_wait_seconds()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        seconds = self._seconds[self.exchange.in_force]
        if self.exchange.stepped(seconds, 0.9 * seconds):
            self.order.append(self.exchange.in_force)

    def until(self, name: str) -> None:
        while self.exchange.in_force != name:
            self.step()

    def choose(self) -> None:
        while not self.exchange.chosen:
            self.step()

    def tensors(self) -> list[Tensor]:
        moments = [value for kept in self.optimizer.state.values() for value in kept.values()]
        assert len(moments) == 3 * 2, "Adam's, of two parameters"
        return [*(parameter.detach() for parameter in self.model.parameters()), *moments]

    def alike(self) -> bool:
        """The same bits on every rank."""
        different = torch.tensor([0])
        for tensor in self.tensors():
            first = tensor.clone()
            dist.broadcast(first, 0)
            different += int(not torch.equal(first, tensor))
        dist.all_reduce(different)
        return not bool(different)

    def figures(self, name: str) -> tuple[float | None, float | None]:
        (own,) = [figures for figures in self.exchange.tried if figures.algorithm == name]
        return own.predicted_seconds, own.measured_seconds


def not_kept(rank: int, world: int, name: str) -> None:
    weighed = Weighed((name,), {"allreduce": 1.0, name: 0.99})
    weighed.until(name)
    assert weighed.alike()
    trial = INTERVAL_TRIAL_STEPS if name in AT_INTERVALS else A_TRIAL
    for _ in range(trial - 1):
        weighed.step()
        assert weighed.exchange.in_force == name
    assert not weighed.alike(), "every rank steps by itself"
    weighed.step()
    assert weighed.order[:3] == ["allreduce", name, "allreduce"]
    assert weighed.alike(), "one model, and one optimizer's state"
    weighed.choose()
    assert weighed.exchange.in_force == "allreduce"
    assert weighed.figures(name)[1] == pytest.approx(0.99)
    weighed.step()
    assert weighed.alike(), "and nothing averages any more"
    weighed.exchange.close()


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", ALL)
def test_after_an_average_that_is_not_kept_ranks_hold_the_same_bits(tmp_path, name, world):
    ranks.run(not_kept, tmp_path, world, name)


def counted_with(rank: int, world: int) -> None:
    seconds = {"allreduce": 1.0, "local_sgd": 0.4, "diloco": 0.3, "decentralized": 0.5}
    weighed = Weighed(tuple(seconds), seconds, first="decentralized")
    weighed.choose()
    assert weighed.order[2] == "decentralized", "the last of two, since it simply goes on where it is kept"
    assert weighed.exchange.in_force == weighed.order[1] != "decentralized", "what is measured counts"
    weighed.exchange.close()


def test_an_average_that_the_decision_counted_with_is_tried(tmp_path):
    ranks.run(counted_with, tmp_path, 2)


def kept(rank: int, world: int) -> None:
    # Rank 1 would choose another: it is not asked.
    seconds = {"allreduce": 1.0, "fp16": 0.5, "local_sgd": 0.3, "diloco": 0.4, "decentralized": 0.1}
    weighed = Weighed(tuple(seconds), seconds if rank == 0 else {**seconds, "local_sgd": 9.0})
    weighed.choose()
    told = [None] * world
    dist.all_gather_object(told, (weighed.order, weighed.exchange.tried, weighed.steps))
    assert told == told[:1] * world
    assert weighed.order == ["allreduce", "fp16", "local_sgd", "diloco", "local_sgd"], "what promises most comes last"
    assert weighed.steps == 2 * A_TRIAL + 2 * INTERVAL_TRIAL_STEPS <= MOST_STEPS + MOST_STEPS_OF_AVERAGES
    assert weighed.figures("decentralized")[1] is None, "two are tried, and no more"
    assert [weighed.figures(name)[1] for name in ("local_sgd", "diloco")] == pytest.approx([0.3, 0.4])
    assert weighed.alike(), "it begins anew"
    for _ in range(2):
        for _ in range(INTERVAL - 1):
            weighed.step()
        assert not weighed.alike()
        weighed.step()
        weights = weighed.model.module.weight.detach().clone()
        dist.broadcast(weights, 0)
        assert torch.equal(weights, weighed.model.module.weight.detach()), "it goes on averaging"
    assert not weighed.alike(), "moments are a rank's own"
    assert not weighed.exchange.stepped(1.0, 0.9), "chosen once"
    weighed.exchange.settle()
    assert weighed.alike()
    assert weighed.exchange.state_dict() == {}
    weighed.exchange.close()


@pytest.mark.parametrize("world", [2, 4])
def test_the_fastest_average_is_kept_on_every_rank_and_goes_on(tmp_path, world):
    ranks.run(kept, tmp_path, world)


def goes_on(rank: int, world: int) -> None:
    """As `local_sgd` by itself does from the weights and moments of the choice's beginning."""
    weighed = Weighed(("local_sgd",), {"allreduce": 1.0, "local_sgd": 0.1})
    weighed.until("local_sgd")
    other = nn.Linear(64, 64)
    other.load_state_dict(weighed.model.module.state_dict())
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.01)
    optimizer.load_state_dict(copy.deepcopy(weighed.optimizer.state_dict()))
    alone = averaging_class("local_sgd")(None, INTERVAL)
    alone.attach(other, optimizer)
    begun = weighed.steps
    for _ in range(INTERVAL_TRIAL_STEPS + 3):
        weighed.step()
    for step in range(begun + 1, weighed.steps + 1):
        inputs = torch.randn(4, 64, generator=torch.Generator().manual_seed(100 * step + rank))
        (other(inputs).square().mean() / world).backward()
        for parameter in other.parameters():
            parameter.grad *= world  # of the rank's own samples
        optimizer.step()
        optimizer.zero_grad()
    assert weighed.order == ["allreduce", "local_sgd", "local_sgd"]
    for mine, own in zip(weighed.model.module.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, own)
    weighed.exchange.close()
    alone.close()


def test_one_that_is_kept_after_its_trial_steps_as_by_itself_from_the_trials_beginning(tmp_path):
    ranks.run(goes_on, tmp_path, 2)


def saved(rank: int, world: int) -> None:
    weighed = Weighed(("local_sgd",), {"allreduce": 1.0, "local_sgd": 0.1})
    weighed.until("local_sgd")
    begun = weighed.steps
    for _ in range(INTERVAL + 3):
        weighed.step()
    assert not weighed.alike()
    weighed.exchange.settle()
    assert weighed.alike(), "what is saved now is one model"
    assert weighed.exchange.state_dict() == {}, "and nothing of it is a rank's own"
    weighed.choose()
    assert weighed.steps == begun + INTERVAL + 3 + INTERVAL_TRIAL_STEPS, "whole intervals count"
    assert weighed.exchange.in_force == "local_sgd"
    weighed.exchange.close()


def test_a_checkpoint_in_the_middle_of_a_trial_is_one_model_and_the_trial_begins_again(tmp_path):
    ranks.run(saved, tmp_path, 2)


def saved_often(rank: int, world: int) -> None:
    weighed = Weighed(("local_sgd",), {"allreduce": 1.0, "local_sgd": 0.1})
    weighed.until("local_sgd")
    while not weighed.exchange.chosen:
        weighed.step()
        if weighed.steps % 6 == 0:
            weighed.exchange.settle()
    assert weighed.exchange.in_force == "allreduce"
    assert weighed.figures("local_sgd")[1] is None
    assert weighed.alike()
    weighed.exchange.close()


def test_what_is_saved_more_often_than_an_average_is_made_keeps_none(tmp_path):
    ranks.run(saved_often, tmp_path, 2)


def errors_are_saved(rank: int, world: int) -> None:
    weighed = Weighed(("powersgd", "local_sgd"), {"allreduce": 1.0, "powersgd": 0.5, "local_sgd": 0.1})
    weighed.until("powersgd")
    weighed.until("local_sgd")
    assert not weighed.exchange.chosen
    saved = weighed.exchange.state_dict()
    assert float(saved["powersgd/error/weight"].abs().max()) > 0, "it may be chosen yet"
    weighed.choose()
    assert weighed.exchange.state_dict() == {}, "it was not"
    weighed.exchange.close()


def test_a_checkpoint_in_the_middle_of_the_choice_holds_the_errors_of_what_was_tried_before(tmp_path):
    ranks.run(errors_are_saved, tmp_path, 2)


def outer_momenta_go_on(rank: int, world: int) -> None:
    seconds = {"allreduce": 1.0, "diloco": 0.1}
    before, after = (Weighed(("diloco",), seconds) for _ in range(2))
    before.choose()
    before.exchange.settle()
    saved = {name: value.clone() for name, value in averaging_tensors(before.exchange).items()}
    assert rank_tensors(rank, before.exchange).keys() == rank_tensors(rank, None).keys(), "none is a rank's own"
    momentum = saved["averaging/diloco/momentum/weight"]
    assert float(momentum.abs().max()) > 0
    restore_rank(saved, False, rank, after.exchange)
    again = averaging_tensors(after.exchange)
    assert torch.equal(again["averaging/diloco/momentum/weight"], momentum), "not lost before its turn"
    after.until("diloco")
    begun = averaging_tensors(after.exchange)
    assert torch.equal(begun["averaging/diloco/momentum/weight"], momentum)
    assert torch.equal(begun["averaging/diloco/anchor/weight"], after.model.module.weight.detach())
    assert int(begun["averaging/diloco/steps"]) == 0
    for weighed in (before, after):
        weighed.exchange.close()


def test_outer_momenta_go_through_a_checkpoint_and_other_exchanges_to_any_number_of_ranks(tmp_path):
    ranks.run(outer_momenta_go_on, tmp_path, 2)


def not_enough(rank: int, world: int) -> None:
    weighed = Weighed(("bytegrad", "local_sgd"), {"allreduce": 1.0, "bytegrad": 0.5, "local_sgd": 0.49})
    weighed.choose()
    assert weighed.order[:4] == ["allreduce", "bytegrad", "local_sgd", "bytegrad"]
    assert weighed.exchange.in_force == "bytegrad"
    weighed.exchange.close()


def test_an_exchange_of_gradients_stays_unless_an_average_saves_a_twentieth_of_its_step(tmp_path):
    ranks.run(not_enough, tmp_path, 2)


def ends_in_a_trial(rank: int, world: int, name: str) -> None:
    """Stopped without a checkpoint: no rank waits for another, and no thread or hook is left."""
    weighed = Weighed((name,), {"allreduce": 1.0, name: 0.1})
    weighed.until(name)
    for _ in range(3):
        weighed.step()
    weighed.exchange.close()
    assert not weighed.optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("name", ALL)
def test_a_job_may_end_in_the_middle_of_a_trial(tmp_path, name):
    ranks.run(ends_in_a_trial, tmp_path, 2, name)


def undeclared(rank: int, world: int) -> None:
    chosen = averaging_class("local_sgd")
    declared, chosen.traffic = chosen.__dict__["traffic"], classmethod(lambda cls, shapes, world: None)
    try:
        weighed = Weighed(("local_sgd",), {"allreduce": 1.0})
        weighed.choose()
    finally:
        chosen.traffic = declared
    assert set(weighed.order) == {"allreduce"}
    assert {figures.algorithm for figures in weighed.exchange.tried} == {"allreduce"}
    weighed.exchange.close()


def test_what_declares_no_traffic_is_left_out(tmp_path):
    ranks.run(undeclared, tmp_path, 2)


def own_gradients(rank: int, world: int) -> None:
    weighed = Weighed(("local_sgd",), {"allreduce": 1.0, "local_sgd": 0.1})
    assert weighed.exchange.of_whole_batch()
    weighed.until("local_sgd")
    assert not weighed.exchange.of_whole_batch(), "so that no noise is measured"
    inputs = torch.full((2, 64), 1.0 + rank)
    (weighed.model(inputs).sum() / world).backward()
    assert torch.equal(weighed.model.module.weight.grad, torch.full((64, 64), 2 * (1.0 + rank)))
    weighed.exchange.close()


def test_backward_leaves_each_rank_the_gradient_of_its_own_samples(tmp_path):
    ranks.run(own_gradients, tmp_path, 2)
