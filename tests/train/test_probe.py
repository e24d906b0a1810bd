"""What a training function trains is known before the job runs, without a word about it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastic_core.errors import UserError
from elastic_core.spec import JobSpec
from elastic_core.train import entry
from elastic_core.train.entry import session_task
from elastic_core.train.probe import input_of_loop
from elastic_core.train.steps.evaluating import measured
from elastic_core.train.task import Task
from examples import plain_loop
from tests.train.adapters.trained import assert_resizes_change_no_weight

SPEC = JobSpec.model_validate(
    {"name": "a", "entry_point": "my:train", "params": {"width": 3}, "work": {"epochs": 1},
     "batch": {"min": 8, "max": 8}, "slots": {"min": 1, "max": 1}}
)  # fmt: skip


def train(session: Any) -> None:
    model = session.model(lambda: nn.Linear(2, session.params["width"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    session.prepare(model, optimizer, TensorDataset(torch.ones(7, 2)), evaluate=lambda model: {"two": 2.0})
    raise AssertionError("a probe goes no further")


def guarded(session: Any) -> None:
    try:
        train(session)
    except Exception:  # noqa: BLE001 - as users write it
        raise AssertionError("the function caught what is none of its business") from None


@pytest.mark.parametrize("function", [train, guarded, session_task()(lambda session: train(session))])
def test_size_and_model_are_those_that_prepare_is_given(function: Any) -> None:
    facts = entry.job_facts(function, SPEC)
    assert (facts.dataset_samples, facts.num_parameters, facts.metric) == (7, 3 * 2 + 3, "loss")
    model, evaluate = entry.model_and_evaluate(function, SPEC)
    assert model.weight.shape == (3, 2)
    assert measured(evaluate, model) == {"two": 2.0}


def test_what_the_decorator_says_holds() -> None:
    said = session_task(dataset_samples=9, model=lambda _: nn.Linear(1, 1), evaluate=lambda *_: {"one": 1.0})(train)
    assert entry.job_facts(said, SPEC).dataset_samples == 9
    model, evaluate = entry.model_and_evaluate(said, SPEC)
    assert model.weight.shape == (1, 1)
    assert measured(evaluate, model) == {"one": 1.0}


def test_a_function_that_says_its_size_and_not_its_model_is_never_run_for_it() -> None:
    said = session_task(dataset_samples=9)(lambda session: session.never())
    assert entry.job_facts(said, SPEC).num_parameters == 0
    assert entry.model_and_evaluate(said, SPEC) == (None, None)
    with pytest.raises(UserError, match="known only inside the loop"):
        entry.new_model(said, SPEC)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda session: None, r"my:train returned without calling session.prepare"),
        (lambda session: session.prepare(None, None, iter(())), "no length"),
        (lambda session: print(session.allocation), r"session.allocation is not known before session.prepare"),
        (lambda session, more: None, "only parameter is called session"),
        (lambda model: None, "only parameter is called session"),
        (7, "it is no function"),
    ],
)
def test_what_tells_nothing_is_refused_in_words(function: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        entry.job_facts(function, SPEC)


def test_the_functions_own_errors_go_through() -> None:
    def fails(session: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        entry.job_facts(fails, SPEC)


@pytest.mark.nightly
def test_the_example_loop_is_resized_and_ends_as_if_it_had_not_been(new_job) -> None:
    assert entry.job_facts(plain_loop.train, SPEC).dataset_samples == 1497
    assert_resizes_change_no_weight(new_job, "examples.plain_loop:train", (1, 3), atol=1e-5)


class Rows(Task):
    """Two numbers a row; `called` says with what the loss calls the model."""

    called = "first"

    def model(self) -> nn.Module:
        return nn.Linear(2, 3)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1.0)

    def dataset(self) -> TensorDataset:
        return TensorDataset(torch.arange(14.0).view(7, 2), torch.zeros(7, dtype=torch.long))

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        rows, labels = batch
        if self.called == "nothing":
            raise ValueError("one row is too few")
        output = model(input=rows) if self.called == "by name" else model(rows)
        return nn.functional.cross_entropy(output, labels)


@pytest.mark.parametrize("called", ["first", "by name", "nothing"])
def test_a_models_input_is_what_the_loss_of_one_sample_calls_it_with(
    called: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Rows, "called", called)
    model = Rows(Rows.Params()).model()
    found = entry.model_input(Rows, SPEC.model_copy(update={"params": {}}), model)
    if called == "first":
        assert torch.equal(found, torch.tensor([[0.0, 1.0]]))
    else:
        assert found is None
    assert ("one row is too few" in caplog.text) == (called == "nothing")
    assert not model._forward_pre_hooks


def test_a_training_functions_model_takes_the_sample_or_its_first_part() -> None:
    def unmarked(session: Any) -> None:
        train(session)

    model, _ = entry.model_and_evaluate(unmarked, SPEC)
    assert torch.equal(entry.model_input(unmarked, SPEC, model), torch.ones(1, 2))
    assert entry.model_input(unmarked, SPEC, nn.Linear(9, 9)) is None
    assert input_of_loop(model, [object()]) is None, "of samples that are no tensors nothing is said"


@pytest.mark.parametrize("asks", [False, True], ids=["runs up to prepare", "asks for what only ranks know"])
def test_a_function_that_declares_its_size_shows_its_models_input_where_it_runs_without_ranks(
    asks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @session_task(dataset_samples=9)
    def declared(session: Any) -> None:
        if asks:
            session.allocation  # noqa: B018 - asked for
        train(session)

    found = entry.model_input(declared, SPEC, nn.Linear(2, 3))
    assert (found is None) == asks
    assert ("session.allocation is not known before" in caplog.text) == asks
