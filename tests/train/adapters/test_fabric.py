"""A loop written for Fabric trains as one written for a session, resized or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from elastic_core.errors import UserError
from elastic_core.spec import JobSpec
from elastic_core.train import entry
from elastic_core.train.adapters.fabric import ElasticFabric, _Loader
from examples import fabric_digits
from tests.train.adapters.trained import DIGITS, assert_resizes_change_no_weight, digits_job

ENTRY = "examples.fabric_digits:train"
SPEC = {"name": "a", "entry_point": ENTRY, "work": {"epochs": 1}, "batch": {"min": 8, "max": 8}, "slots": {"max": 1}}


class Passes:
    """As much of a session as a loader asks: ten samples a pass, four a step."""

    def __init__(self, steps: int) -> None:
        self.num_samples, self._steps = 0, steps

    def batches(self) -> Any:
        yield from range(self._steps)

    def step(self) -> None:
        self.num_samples += 4


def test_what_it_trains_is_known_before_it_runs() -> None:
    facts = entry.job_facts(fabric_digits.train, JobSpec.model_validate(SPEC))
    assert (facts.dataset_samples, facts.num_parameters) == (DIGITS, 64 * 64 + 64 + 640 + 10)


@pytest.mark.nightly
@pytest.mark.parametrize("resized", [(2, 1), (1, 3)])
def test_a_resized_job_ends_with_the_weights_of_an_undisturbed_one(new_job, resized):
    assert_resizes_change_no_weight(new_job, ENTRY, resized, atol=1e-5)


def test_it_learns_and_what_it_logs_is_kept(new_job):
    job = digits_job(new_job, "long", ENTRY, samples=DIGITS * 5)
    assert job.run(1, 64) == [0], job.logs()
    assert job.ledger.commits()[-1].metrics["accuracy"] > 0.7


def test_a_pass_over_the_loader_is_one_over_the_data_set_and_the_last_ones_are_empty() -> None:
    session = Passes(7)
    loader = _Loader(DataLoader(TensorDataset(torch.ones(10, 1))), session)  # type: ignore[arg-type]
    passes: list[list[int]] = [[], [], [], []]
    for seen in passes:
        for batch in loader:
            seen.append(batch)
            session.step()
    assert passes == [[0, 1, 2], [3, 4], [5, 6], []]


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda fabric: fabric.save("a", {}), "checkpoints are the platform's"),
        (lambda fabric: fabric.clip_gradients(), "clip_grad_norm"),
        (lambda fabric: fabric.all_gather(1), "not there in an elastic job"),
        (lambda fabric: fabric.setup(nn.Linear(1, 1)), "0 optimizers"),
    ],
)
def test_what_fabric_does_besides_is_refused_in_words(use: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        use(ElasticFabric(object()))  # type: ignore[arg-type]


def test_a_script_sees_its_rank_and_only_the_first_one_prints(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        fabric = ElasticFabric(type("Session", (), {"rank": rank, "world_size": 2})())
        assert (fabric.global_rank, fabric.world_size, fabric.is_global_zero) == (rank, 2, rank == 0)
        fabric.print(f"rank {rank}")
    assert capsys.readouterr().out == "rank 0\n"
