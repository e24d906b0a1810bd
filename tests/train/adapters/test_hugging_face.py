"""A Hugging Face script trains as its own Trainer does, and where it is resized as where it is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_core.errors import UserError
from elastic_core.spec import JobSpec
from elastic_core.train import entry
from elastic_core.train.adapters.hugging_face import _NOT_OURS, items_of, schedule, trainer_task
from elastic_core.train.checkpoint.training_state import seed_everything
from elastic_core.train.data.audit import prove
from tests.required import of_adapters
from tests.train.adapters.trained import DIGITS, assert_resizes_change_no_weight, digits_job, final_weights

transformers = of_adapters("transformers")

VIT = "examples.hugging_face_vit:train"
PADDED = "tests.train.adapters.padded_text:train"


def a_trainer(kind: Any = transformers.Trainer, **arguments: Any) -> Any:
    from examples import hugging_face_vit as example
    from examples.digits import split_digits

    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4,
        num_channels=1, num_labels=10,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    given = transformers.TrainingArguments(output_dir="/nonexistent", report_to="none", **arguments)
    trained, held_out = (example.Images(part) for part in split_digits())
    return kind(model, given, train_dataset=trained, eval_dataset=held_out)


@pytest.mark.parametrize("resized", [(2, 1), (1, 3)])
def test_a_resized_job_ends_with_the_weights_of_an_undisturbed_one(new_job, resized):
    job = assert_resizes_change_no_weight(new_job, VIT, resized, atol=1e-4)
    (verdict,) = prove([commit.fingerprints for commit in job.ledger.commits()], job.rows)
    assert (verdict.count, verdict.problem) == (job.total, "")


def test_a_resized_job_of_padded_sentences_ends_with_the_weights_of_an_undisturbed_one(new_job):
    batch = {"min": 30, "max": 30, "max_per_slot": 8}
    assert_resizes_change_no_weight(new_job, PADDED, (1, 3), atol=1e-5, batch=batch)


def test_a_job_of_padded_sentences_ends_where_its_own_trainer_ends(new_job):
    """On batches of everything, in three micro-batches, where nobody's order counts."""
    from tests.train.adapters.padded_text import SENTENCES, trainer_of

    assert SENTENCES == DIGITS, "rows of the job"
    steps, batch = 4, {"min": SENTENCES, "max": SENTENCES, "max_per_slot": 500}
    job = digits_job(new_job, "ours", PADDED, samples=steps * SENTENCES, batch=batch)
    assert job.run(1, SENTENCES) == [0], job.logs()
    seed_everything(3)  # as the session does
    trainer = trainer_of(per_device_train_batch_size=500, gradient_accumulation_steps=3, num_train_epochs=steps)
    trainer.train()
    weights = final_weights(job)
    for name, tensor in trainer.model.state_dict().items():
        torch.testing.assert_close(weights[f"model/{name}"], tensor, rtol=1e-3, atol=1e-5)


def test_it_learns_and_is_measured_by_the_trainers_own_evaluation(new_job):
    job = digits_job(new_job, "long", VIT, samples=1497 * 4)
    assert job.run(1, 64) == [0], job.logs()
    (last,) = [commit for commit in job.ledger.commits() if commit.finished]
    assert last.metrics["eval_accuracy"] > 0.6, "of ten classes, after four passes"
    assert not [name for name in last.metrics if name.endswith(("_runtime", "_per_second"))]


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant_with_warmup"])
def test_the_schedule_is_the_trainers_own_at_every_step(tmp_path: Path, kind: str) -> None:
    steps = 40
    trainer = a_trainer(lr_scheduler_type=kind, warmup_steps=10, learning_rate=1.0)
    factor = schedule(trainer, steps)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    own = trainer.create_scheduler(steps, optimizer)
    for step in range(steps):
        assert factor(step / steps) == pytest.approx(own.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        own.step()


def test_a_schedule_by_a_metric_is_refused_in_words() -> None:
    with pytest.raises(UserError, match=r"reduce_lr_on_plateau.* no function of the step"):
        schedule(a_trainer(lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps", eval_steps=5), 10)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bf16": True, "use_cpu": True}, r'bf16=.*"precision": "bf16"'),
        ({"neftune_noise_alpha": 5.0}, "noise in the model"),
    ],
)
def test_what_would_be_ignored_is_refused(arguments: Mapping[str, Any], words: str) -> None:
    train = trainer_task(metric="loss")(lambda _params: a_trainer(**arguments))
    with pytest.raises(UserError, match=words):
        entry.job_facts(train, a_spec())


class Averaging(transformers.TrainerCallback):
    def on_step_end(self, *_: Any, **__: Any) -> None:
        raise AssertionError("nobody calls it")


class Watching(transformers.TrainerCallback):
    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """As the Trainer calls it."""


class Noisy(transformers.Trainer):
    def training_step(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nobody calls it")


def with_callback(*callbacks: Any, kind: Any = transformers.Trainer) -> Any:
    trainer = a_trainer(kind)
    for callback in callbacks:
        trainer.add_callback(callback)
    return trainer


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda _: with_callback(Averaging), ["Averaging"]),
        (lambda _: with_callback(transformers.EarlyStoppingCallback(3)), ["EarlyStoppingCallback"]),
        (lambda _: a_trainer(kind=Noisy), ["training_step"]),
    ],
)
def test_what_the_trainers_own_loop_would_call_is_refused_unless_the_job_does_without(make: Any, names: Any) -> None:
    with pytest.raises(UserError, match=rf"brings {names[0]}, which.*ignore=\('{names[0]}',\)"):
        entry.job_facts(trainer_task(metric="loss")(make), a_spec())
    assert entry.job_facts(trainer_task(metric="loss", ignore=names)(make), a_spec()).dataset_samples == DIGITS


def test_the_refusal_names_all_at_once_and_what_to_say_keeps_what_is_said_already() -> None:
    def make(_params: Any) -> Any:
        return with_callback(Averaging, transformers.EarlyStoppingCallback(3), kind=Noisy)

    words = r"brings training_step, Averaging, which.*ignore=\('EarlyStoppingCallback', 'training_step', 'Averaging'\)"
    with pytest.raises(UserError, match=words):
        entry.job_facts(trainer_task(metric="loss", ignore=["EarlyStoppingCallback"])(make), a_spec())


def test_what_evaluation_calls_or_only_reports_is_taken() -> None:
    from transformers.integrations import MLflowCallback

    for callback in (Watching, transformers.PrinterCallback, MLflowCallback):
        train = trainer_task(metric="loss")(lambda _, callback=callback: with_callback(callback))
        assert entry.job_facts(train, a_spec()).dataset_samples == DIGITS


@pytest.mark.parametrize("is_scaled", [None, True, False])
def test_labels_are_counted_as_the_trainers_own_loop_counts_them(is_scaled: bool | None) -> None:
    from tests.train.adapters.padded_text import Sentences, trainer_of

    trainer, sentences = trainer_of(), Sentences()
    trainer.loss_is_scaled_for_ga = is_scaled
    batch = trainer.data_collator([sentences[i] for i in range(5)])
    count = items_of(trainer)
    if is_scaled is False:
        assert count is None, "its loss is a mean over samples"
    else:
        counted = count(batch)
        assert counted == int(batch["attention_mask"].sum()) - 5, "the first word of each is no label"
        assert torch.is_tensor(counted), "no forward pass waits for the device to count"
        assert count({"input_ids": batch["input_ids"]}) is None


def test_what_it_says_to_do_instead_is_what_a_spec_takes() -> None:
    told = " ".join(_NOT_OURS.values())
    for layouts in re.findall(r'"layouts": (\{[^}]*\})', told):
        one = {"min": 1, "max": 1}
        JobSpec.model_validate(
            {"name": "a", "entry_point": VIT, "work": {"epochs": 1}, "batch": {"min": 8, "max": 8}, "slots": one,
             "layouts": json.loads(layouts)}
        )  # fmt: skip
    assert told.count('"layouts"') == 2


def test_what_is_no_trainer_is_refused() -> None:
    train = trainer_task(metric="loss")(lambda _params: torch.nn.Linear(1, 1))
    with pytest.raises(UserError, match=r"gives Linear, which is no Trainer.*leave trainer.train\(\) out"):
        entry.job_facts(train, a_spec())


def test_transformers_sees_one_process_whatever_the_environment_says() -> None:
    code = (
        "from examples import hugging_face_vit as example\n"
        "from elastic_core.train.adapters.hugging_face import _made\n"
        "import torch, os\n"
        "trainer = _made(example.train.__wrapped__, {})\n"
        "print(trainer.args.world_size, torch.distributed.is_initialized(), os.environ['RANK'])\n"
    )
    environment = {**os.environ, "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1", "False", "1"], done.stderr


def a_spec() -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "a",
            "entry_point": VIT,
            "work": {"epochs": 1},
            "batch": {"min": 8, "max": 8},
            "slots": {"min": 1, "max": 1},
        }
    )
