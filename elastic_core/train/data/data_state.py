"""The data set's part of a job's state, as a checkpoint keeps it beside the cursor: what fixes who reads what, when.

With the header's cursor and layout it is all that the order needs, so that anybody who has the checkpoint can say
which samples rank r read, or will read, at step s. Checkpoints of before it was kept go on as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch.utils.data import Dataset

from elastic_core.domain import from_json, to_json
from elastic_core.errors import UserError
from elastic_core.state.order.block_order import BLOCK_ORDER_VERSION, Blocks, from_run_lengths, run_lengths
from elastic_core.state.order.sample_order import ORDER_VERSION
from elastic_core.train.data.batches import DataPlan, StepPlan, plan_step

KEY, ORDER = "data", "order"  # among a checkpoint's scalars


@dataclass(frozen=True, kw_only=True)
class DataState:
    """A stretch of steps at one global batch, which began after `since_step` steps with `since_samples` samples done.

    All counts but the steps are in samples.
    """

    seed: int
    dataset_samples: int
    total_samples: int
    global_batch: int
    since_step: int
    since_samples: int
    blocks: tuple[tuple[int, int], ...] | None = None  # (rows, times) of the data set's blocks, in their order
    window: int | None = None  # in blocks

    @staticmethod
    def of(plan: DataPlan, global_batch: int, since_step: int, since_samples: int) -> DataState:
        blocks = plan.blocks
        return DataState(
            seed=plan.seed, dataset_samples=plan.dataset_samples, total_samples=plan.total_samples,
            global_batch=global_batch, since_step=since_step, since_samples=since_samples,
            blocks=None if blocks is None else run_lengths(blocks.rows),
            window=None if blocks is None else blocks.window,
        )  # fmt: skip

    def to_scalars(self) -> dict[str, Any]:
        """With the version of the order, which says to releases that know no blocks that they cannot go on."""
        fields = {key: value for key, value in to_json(self).items() if value is not None}
        return {KEY: fields, ORDER: ORDER_VERSION if self.blocks is None else BLOCK_ORDER_VERSION}

    @staticmethod
    def from_scalars(scalars: Mapping[str, Any]) -> DataState | None:
        """None for a checkpoint that was written before this was kept."""
        return from_json(DataState, scalars[KEY]) if KEY in scalars else None

    @cached_property
    def plan(self) -> DataPlan:
        blocks = None
        if self.blocks is not None and self.window is not None:
            blocks = Blocks(from_run_lengths(self.blocks), self.window)
        return DataPlan(self.seed, self.dataset_samples, self.total_samples, None, blocks)

    @property
    def last_step(self) -> int:
        """The step that finishes the job, if the batch stays."""
        return self.since_step + -(-(self.total_samples - self.since_samples) // self.global_batch)

    def step(self, number: int, data_rank: int, data_ranks: int) -> StepPlan:
        """What a data rank reads at the job's step `number`, from 1 on. Raises `UserError` outside the stretch."""
        if not self.since_step < number <= self.last_step:
            raise UserError(
                f"Step {number} is not among steps {self.since_step + 1} to {self.last_step}, whose batch of "
                f"{self.global_batch} samples this checkpoint knows."
            )
        cursor = self.since_samples + (number - 1 - self.since_step) * self.global_batch
        return plan_step(self.plan, cursor, self.global_batch, data_rank, data_ranks)


def check_dataset(dataset: Dataset[Any], num_samples: int) -> None:
    """Raises `UserError` for a data set without a length, or of another one than the job was submitted with."""
    try:
        size = len(dataset)  # type: ignore[arg-type]
    except TypeError as error:
        raise UserError(
            f"The data set, a {type(dataset).__name__}, has no length. Give a map-style one, with len() and [index], "
            f"or one of blocks (elastic_core.train.blocks); docs/guide/data.md says what to do with a stream."
        ) from error
    if size != num_samples:
        raise UserError(
            f"The data set has {size} samples here, but had {num_samples} when the job was submitted. The order of "
            f"the data depends on it: submit a new job for changed data."
        )


def check_resumed(plan: DataPlan, scalars: Mapping[str, Any]) -> None:
    """Raises `UserError` where the checkpoint's cursor counts in another order than the data set has now."""
    state = DataState.from_scalars(scalars)
    before = state.plan.blocks if state is not None else None
    if before == plan.blocks:
        return
    had, has = (_described(blocks) for blocks in (before, plan.blocks))
    raise UserError(
        f"The checkpoint's data was read {had}, the data set is read {has}: going on would read samples twice or "
        f"not at all. Give the data as it was, or start a new job from its weights (a warm start)."
    )


def _described(blocks: Blocks | None) -> str:
    if blocks is None:
        return "sample by sample"
    return f"in {len(blocks.rows)} blocks of {blocks.num_samples} samples, {blocks.window} to a window"
