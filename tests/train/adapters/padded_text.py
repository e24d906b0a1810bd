"""Sentences of different lengths, padded, and a `Trainer` of a small language model of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from elastic_core.train.adapters.hugging_face import trainer_task

SENTENCES, LONGEST, WORDS = 1497, 12, 32


class Sentences(Dataset[dict[str, Tensor]]):
    """The longer a sentence is, the more words it is of: a mean over sentences is another than one over words."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self._lengths = torch.randint(2, LONGEST + 1, (SENTENCES, 1), generator=generator)
        drawn = torch.rand(SENTENCES, LONGEST, generator=generator)
        self._words = 1 + (drawn * 2 * self._lengths).long()

    def __len__(self) -> int:
        return SENTENCES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        words, within = self._words[index], torch.arange(LONGEST) < self._lengths[index]
        return {
            "input_ids": torch.where(within, words, 0),
            "attention_mask": within.long(),
            "labels": torch.where(within, words, -100),
        }


def trainer_of(**arguments: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=LONGEST,
    )  # fmt: skip
    given = TrainingArguments(
        output_dir=tempfile.gettempdir(), optim="sgd", learning_rate=0.5, lr_scheduler_type="constant",
        report_to="none", disable_tqdm=True, save_strategy="no", use_cpu=True, **arguments,
    )  # fmt: skip
    return Trainer(LlamaForCausalLM(config), given, train_dataset=Sentences())


@trainer_task(metric="loss")
def train(_params: Mapping[str, Any]) -> Any:
    return trainer_of()
