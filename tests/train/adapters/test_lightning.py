"""A Lightning script trains as its own Trainer would, and where it is resized as where it is not."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from elastic_core.errors import UserError
from elastic_core.spec import JobSpec
from elastic_core.train import entry
from elastic_core.train.adapters.lightning import (
    EveryFew,
    evaluated,
    left_out,
    lightning_task,
    optimizer_and_scheduler,
    redirected,
)
from elastic_core.train.adapters.stand_in_trainer import StandInTrainer
from elastic_core.train.checkpoint.training_state import seed_everything
from tests.required import of_adapters
from tests.train.adapters.trained import DIGITS, assert_resizes_change_no_weight, digits_job, final_weights

lightning = of_adapters("lightning")

DIGITS_TASK = "examples.lightning_digits:train"


class Line(lightning.LightningModule):
    """With whatever a test says about optimizers."""

    def __init__(self, optimizers: Any = None) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.optimizers_of = optimizers or (lambda module: torch.optim.SGD(module.parameters(), lr=1.0))
        self.seen: list[Any] = []

    def forward(self, x: Any) -> Any:
        return self.layer(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append(batch_idx)
        return self(batch[0]).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("rows", float(len(batch[0])))
        self.log("index", float(batch_idx), batch_size=1)

    def configure_optimizers(self) -> Any:
        return self.optimizers_of(self)

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.ones(10, 2)), batch_size=2)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.ones(10, 2)), batch_size=4)


class StepsOfASession:
    """As much of a session as schedulers and trainers ask: how many steps and samples there were before this one."""

    rank, total_samples, base_steps = 0, 25, 5

    def __init__(self, batch: int) -> None:
        self.num_steps, self._batch = 0, batch

    @property
    def num_samples(self) -> int:
        return self.num_steps * self._batch

    @property
    def allocation(self) -> Any:
        return type("Allocation", (), {"global_batch": self._batch})


@pytest.mark.parametrize("resized", [(2, 1), (1, 3)])
def test_a_resized_job_ends_with_the_weights_of_an_undisturbed_one(new_job, resized):
    assert_resizes_change_no_weight(new_job, DIGITS_TASK, resized, atol=1e-5)


@pytest.mark.parametrize(
    ("script", "kind"), [("examples.lightning_digits", "Classifier"), ("tests.train.adapters.annealed", "Annealed")]
)
def test_it_ends_where_lightnings_own_trainer_ends(new_job, script, kind):
    """On batches of everything, where nobody's order counts: the same steps, rates, passes, and what follows them."""
    from examples.lightning_digits import Digits

    Classifier = getattr(importlib.import_module(script), kind)
    passes = 7  # StepLR halves the rate after five
    job = digits_job(new_job, "ours", f"{script}:train", samples=passes * DIGITS, batch={"min": DIGITS, "max": DIGITS})
    seed_everything(3)  # as the session does
    start = Classifier()
    assert job.run(1, DIGITS) == [0], job.logs()

    module, data = Classifier(), Digits()
    module.load_state_dict(start.state_dict())
    data.train_dataloader = lambda: DataLoader(data.trained, batch_size=DIGITS)
    trainer = lightning.Trainer(
        max_epochs=passes, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, data)
    weights = final_weights(job)
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(weights[f"model/{name}"], tensor, rtol=1e-3, atol=1e-5)
    if kind == "Annealed":
        assert job.logs().count(f"fit ends after step {passes}") == 1


def test_what_it_logs_is_measured_and_observed(new_job):
    job = digits_job(new_job, "long", DIGITS_TASK, samples=DIGITS * 6)
    assert job.run(1, 64) == [0], job.logs()
    (last,) = [commit for commit in job.ledger.commits() if commit.finished]
    assert last.metrics["val_accuracy"] > 0.8
    assert last.metrics["train_accuracy"] > 0.5


def test_validation_is_the_mean_over_samples_unless_it_says_otherwise() -> None:
    module, trainer = Line(), StandInTrainer(StepsOfASession(5))
    assert evaluated(module, trainer, module) == {"rows": pytest.approx((4 * 4 + 4 * 4 + 2 * 2) / 10), "index": 1.0}


def test_several_validation_sets_are_told_apart_as_lightning_does() -> None:
    module = Line()
    one = module.val_dataloader
    module.val_dataloader = None
    data = type("Data", (), {"val_dataloader": lambda _self: [one(), one()]})()
    assert set(evaluated(data, StandInTrainer(StepsOfASession(5)), module)) == {
        f"{name}/dataloader_idx_{number}" for name in ("rows", "index") for number in (0, 1)
    }


def test_a_training_step_runs_inside_of_what_wraps_forward() -> None:
    module, calls = Line(), []
    module.register_forward_pre_hook(lambda *_: calls.append("before"))
    with redirected(module, "training_step"):
        module([torch.ones(1, 2)], 7)
    assert module.seen == [7]
    assert calls == ["before", "before"], "of the step, and of the forward in it"
    assert "forward" not in vars(module)


@pytest.mark.parametrize(
    "given",
    [
        lambda optimizer, scheduler: optimizer,
        lambda optimizer, scheduler: [optimizer],
        lambda optimizer, scheduler: {"optimizer": optimizer},
    ],
)
def test_an_optimizer_alone_has_no_scheduler(given: Any) -> None:
    module = Line(lambda module: given(torch.optim.SGD(module.parameters(), lr=1.0), None))
    optimizer, scheduler = optimizer_and_scheduler(module, StepsOfASession(5), 10)
    assert isinstance(optimizer, torch.optim.SGD)
    assert scheduler is None


@pytest.mark.parametrize(
    ("settings", "steps_a_time"),
    [
        ({}, 2),
        ({"interval": "epoch", "frequency": 2}, 4),
        ({"interval": "step"}, 1),
        ({"interval": "step", "frequency": 3}, 3),
    ],
)
def test_a_scheduler_is_stepped_as_often_as_lightning_steps_it(settings: Any, steps_a_time: int) -> None:
    """Ten samples a pass, five a step."""

    def both(module: Any) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **settings}}

    session = StepsOfASession(5)
    optimizer, scheduler = optimizer_and_scheduler(Line(both), session, 10)
    assert scheduler is not None
    for step in range(1, 13):
        optimizer.step()
        scheduler.step()
        session.num_steps = step
        assert optimizer.param_groups[0]["lr"] == 0.5 ** (step // steps_a_time)


def test_a_scheduler_goes_on_where_it_was() -> None:
    def scheduler() -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(torch.optim.SGD([torch.ones(1)], lr=1.0), gamma=0.5)

    session = StepsOfASession(5)
    first = EveryFew(scheduler(), session, 1, 10)
    session.num_steps = 5
    first.step()
    second = EveryFew(scheduler(), session, 1, 10)
    second.load_state_dict(first.state_dict())
    second.step()
    assert second.state_dict() == first.state_dict()


class Averaged(Line):
    """With a moving average of its weights."""

    def on_train_batch_end(self, *_: Any) -> None:
        raise AssertionError("nobody calls it")

    def on_before_optimizer_step(self, *_: Any) -> None:
        raise AssertionError("nobody calls it")

    def on_test_start(self) -> None:
        """Of no fit."""


class Augmented(lightning.LightningDataModule):
    def train_dataloader(self) -> Any:
        return Line().train_dataloader()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        raise AssertionError("nobody calls it")


def test_a_job_may_do_without_hooks_that_it_names() -> None:
    train = lightning_task(metric="loss", ignore=("on_before_optimizer_step", "on_train_batch_end"))
    assert entry.job_facts(train(lambda _: Averaged()), a_spec()).dataset_samples == 10


def test_every_hook_of_a_fit_is_called_or_refused() -> None:
    from lightning.pytorch.core import hooks

    kinds = (hooks.ModelHooks, hooks.DataHooks, hooks.CheckpointHooks)
    names = {name for kind in kinds for name, value in vars(kind).items() if callable(value) and name[0] != "_"}
    called = {"configure_model", "on_validation_epoch_end", "on_validation_epoch_start", "prepare_data", "setup",
              "teardown", "train_dataloader", "val_dataloader"}  # fmt: skip
    of_no_fit = {name for name in names if "test_" in name or "predict_" in name}
    assert called < names
    every = type("Every", (Line,), dict.fromkeys(names, lambda *_: None))
    assert set(left_out(every())) == names - called - of_no_fit


def test_module_and_data_are_prepared_in_the_order_of_lightning() -> None:
    calls: list[str] = []

    class Built(Line):
        def setup(self, stage: str) -> None:
            calls.append(f"module {stage}")

        def configure_model(self) -> None:
            calls.append("model")
            self.more = nn.Linear(3, 3)

    class Data(lightning.LightningDataModule):
        def prepare_data(self) -> None:
            calls.append(f"data of rank {self.trainer.global_rank}")

        def setup(self, stage: str) -> None:
            calls.append(f"data {stage}")

        def train_dataloader(self) -> Any:
            return Line().train_dataloader()

    facts = entry.job_facts(lightning_task(metric="loss")(lambda _: (Built(), Data())), a_spec())
    assert calls == ["data of rank 0", "data fit", "module fit", "model"]
    assert facts.num_parameters == 3 + 12


def test_a_module_may_ask_how_far_its_trainer_is() -> None:
    session = StepsOfASession(5)
    module, trainer = Line(), StandInTrainer(session)
    module.trainer = trainer
    assert (module.current_epoch, module.global_step, module.logger, module.global_rank) == (0, 0, None, 0)
    trainer.dataset_samples, session.num_steps = 10, 3
    assert (module.current_epoch, module.global_step) == (1, 3)
    assert (trainer.max_epochs, trainer.estimated_stepping_batches) == (3, 5), "25 samples are two passes and a half"
    assert copy.deepcopy(module).current_epoch == 0
    with pytest.raises(UserError, match=r"self.trainer.strategy: no Lightning trainer runs.*There are current_epoch"):
        module.all_gather(torch.ones(1))


def a_spec() -> JobSpec:
    spec = {"name": "a", "entry_point": DIGITS_TASK, "work": {"epochs": 1}}
    return JobSpec.model_validate(spec | {"batch": {"min": 8, "max": 8}, "slots": {"min": 1, "max": 1}})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: nn.Linear(1, 1), r"gives Linear, which is no LightningModule.*leave trainer.fit\(\) out"),
        (lambda _: by_hand(), "automatic_optimization is False"),
        (lambda _: Averaged(), r"Averaged brings on_before_optimizer_step, on_train_batch_end, which"),
        (lambda _: (Line(), Augmented()), r"Augmented brings on_after_batch_transfer.*ignore=\('on_after_batch"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_words(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        entry.job_facts(lightning_task(metric="loss")(make), a_spec())


def by_hand() -> Line:
    module = Line()
    module.automatic_optimization = False
    return module


@pytest.mark.parametrize(
    ("optimizers", "words"),
    [
        (lambda module: [torch.optim.SGD(module.parameters(), lr=1.0)] * 2, "2 optimizers"),
        (lambda module: plateau(module), "ReduceLROnPlateau follows a metric"),
    ],
)
def test_optimizers_that_a_job_cannot_have_are_refused_in_words(optimizers: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        optimizer_and_scheduler(Line(optimizers), StepsOfASession(5), 10)


def plateau(module: nn.Module) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    return [optimizer], [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)]
