"""A Hugging Face script made elastic: the lines that say `trainer_task` and `return` are all that was changed.

It trains a vision transformer of `transformers` on scikit-learn's digits. As a plain script it ended with
`trainer.train()`. Needs the packages of requirements-adapters.lock (`make adapters`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from elastic_core.train.adapters.hugging_face import trainer_task
from examples.digits import split_digits


class Images(Dataset[dict[str, Tensor]]):
    """As a `Trainer` reads them: a dictionary a sample, by the names of the model's arguments."""

    def __init__(self, tensors: TensorDataset) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        image, label = self._tensors[index]
        return {"pixel_values": image, "labels": label}


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


@trainer_task(metric="eval_accuracy", metric_mode="max")
def train(params: Mapping[str, Any]) -> Any:
    from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=params.get("width", 64), num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        image_size=8, patch_size=2, num_channels=1, num_labels=10,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(), learning_rate=2e-3, lr_scheduler_type="cosine", warmup_steps=0.1,
        report_to="none", disable_tqdm=True, per_device_eval_batch_size=64,
    )  # fmt: skip
    trained, held_out = split_digits()
    return Trainer(model, arguments, train_dataset=Images(trained), eval_dataset=Images(held_out),
                   compute_metrics=accuracy)  # fmt: skip
