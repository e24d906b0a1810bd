"""What a checkpoint of a training job holds, and putting it back.

Tensors: `model/<name>` (parameters and persistent buffers), `optim/<parameter>/<key>`, of an algorithm that averages
weights `averaging/<algorithm>/<key>`, and per rank `rng/<kind>/<rank>` and `comm/<rank>/<algorithm>/<key>`.
Scalars: the optimizer's numbers, the scheduler's state, AdaScale's noise means, the version of the data order, and how
many ranks wrote it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from elastic_core.comm.algorithm import Exchange
from elastic_core.comm.algorithms import averages
from elastic_core.comm.tuning.auto_exchange import AutoExchange
from elastic_core.domain import Slot, from_json, to_json
from elastic_core.errors import UserError
from elastic_core.state.format import scalars as packing
from elastic_core.state.format.checkpoint_format import Box, Manifest
from elastic_core.state.format.optimizer_state import flatten_optimizer, load_optimizer
from elastic_core.state.format.rng import capture_rng, restore_rng
from elastic_core.state.order.block_order import BLOCK_ORDER_VERSION
from elastic_core.state.order.sample_order import ORDER_VERSION
from elastic_core.train.checkpoint.collection import Collection
from elastic_core.train.gradients.noise import NoiseState
from elastic_core.train.parallel.group import Group

MODEL, OPTIM = "model/", "optim/"
_AVERAGING = "averaging/"


@dataclass
class TrainingState:
    """The live objects of one rank. `scheduler` is a torch learning-rate scheduler or None."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: Any | None
    noise: NoiseState

    def tensors(self) -> dict[str, Tensor]:
        """Those that every rank holds alike; views, not copies."""
        tensors = {MODEL + name: value for name, value in self.model.state_dict().items()}
        tensors.update(flatten_optimizer(self.optimizer, self.model.named_parameters()).tensors)
        return tensors

    def scalars(self, world: int) -> dict[str, Any]:
        return {
            "optimizer": flatten_optimizer(self.optimizer, self.model.named_parameters()).scalars,
            "scheduler": None if self.scheduler is None else packing.pack(self.scheduler.state_dict()),
            "noise": to_json(self.noise),
            "order": ORDER_VERSION,
            "world": world,
        }

    def load(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any], unheld: bool = False) -> None:
        """`tensors` become this state's: nobody else may write to them. `unheld`: nobody holds the memory of the
        model's parameters, so that they may move to where tensors lie.

        Raises `UserError` when the checkpoint is of another model, optimizer, scheduler or data order."""
        self.check_order(scalars)
        self.load_weights(tensors, unheld)
        state = of_optimizer(tensors)
        load_optimizer(self.optimizer, self.model.named_parameters(), state, scalars["optimizer"], take=True)
        load_scheduler_and_noise(self, scalars)

    def collect(
        self,
        tensors: Mapping[str, Tensor],  # noqa: ARG002 - and so on: who holds all has nothing to tell
        group: Group,  # noqa: ARG002
        slots: Sequence[Slot],  # noqa: ARG002
    ) -> Collection | None:
        """What the ranks on `slots` hold together, of which `tensors` are this rank's; None where each holds all.
        Collective."""
        return None

    def boxes(self, manifest: Manifest) -> Mapping[str, Box] | None:  # noqa: ARG002 - parts of a partitioned model depend on it
        """The parts of a checkpoint that this rank needs; None for all of it."""
        return None

    def memory(self) -> dict[str, Tensor]:
        """Where this rank's parts of a checkpoint may be put straight away, before `load` is given them."""
        return {MODEL + name: value for name, value in self.model.state_dict().items()}

    def load_weights(self, tensors: Mapping[str, Tensor], unheld: bool = False) -> None:
        """As in `load`."""
        if unheld:
            move_to(self.parameters(), tensors)
        load_weights(self.model, tensors)

    def parameters(self) -> dict[str, Tensor]:
        """By name, what this rank holds of each."""
        return dict(self.model.named_parameters(remove_duplicate=False))

    def check_order(self, scalars: Mapping[str, Any]) -> None:
        """Raises `UserError` for a checkpoint of another data order."""
        if scalars["order"] not in (ORDER_VERSION, BLOCK_ORDER_VERSION):
            raise UserError(
                f"The checkpoint was written with version {scalars['order']} of the data order and this release reads "
                f"in versions {ORDER_VERSION} and {BLOCK_ORDER_VERSION}: going on would read samples twice or not at "
                f"all. Finish the job with the release that began it, or start a new job from its weights (a warm "
                f"start)."
            )


def load_scheduler_and_noise(state: TrainingState, scalars: Mapping[str, Any]) -> None:
    if (state.scheduler is None) != (scalars["scheduler"] is None):
        has, had = ("no", "one") if state.scheduler is None else ("a", "none")
        raise UserError(f"The task gives {has} learning-rate scheduler, but the checkpoint holds {had}.")
    if state.scheduler is not None:
        state.scheduler.load_state_dict(packing.unpack(scalars["scheduler"]))
    state.noise = from_json(NoiseState, scalars["noise"])


def another_model(why: str) -> UserError:
    return UserError(
        f"The checkpoint is of another model: {why} If the model has changed, start a new job; a warm start takes the "
        f"weights of an equal model."
    )


def move_to(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Have each parameter lie where a tensor has its value, if it can."""
    for name, parameter in parameters.items():
        value = tensors.get(MODEL + name)
        if value is not None and _takeable(value) and _kind(value) == _kind(parameter):
            parameter.data = value


def of_optimizer(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The optimizer's of a state's tensors, for it to keep, each in memory of its own; uncopied where it can be."""
    taken: set[int] = set()
    kept = {}
    for name, value in tensors.items():
        if name.startswith(OPTIM):
            kept[name] = value if _takeable(value) and value.data_ptr() not in taken else value.clone()
            taken.add(kept[name].data_ptr())
    return kept


def _takeable(tensor: Tensor) -> bool:
    """Whether its memory may become another's: nothing else lies in its storage, and autograd may write to it."""
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size() and not tensor.is_inference()


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy a checkpoint's weights into a model of the same names and shapes, whatever device it is on."""
    weights = {name.removeprefix(MODEL): value for name, value in tensors.items() if name.startswith(MODEL)}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise another_model(str(error)) from error


def averaging_tensors(comm: Exchange | None) -> dict[str, Tensor]:
    """What an algorithm that averages weights keeps: alike on every rank, once ranks are settled."""
    if isinstance(comm, AutoExchange):
        return {_AVERAGING + key: value for key, value in comm.averaging_state_dict().items()}
    if comm is None or not averages(comm.name):
        return {}
    return {f"{_AVERAGING}{comm.name}/{key}": value for key, value in comm.state_dict().items()}


def rank_tensors(rank: int, comm: Exchange | None) -> dict[str, Tensor]:
    """What only this rank holds."""
    tensors = capture_rng(rank)
    if comm is not None and not averages(comm.name):
        tensors.update({f"comm/{rank}/{comm.name}/{key}": value for key, value in comm.state_dict().items()})
    return tensors


def restore_rank(tensors: Mapping[str, Tensor], same_layout: bool, rank: int, comm: Exchange | None) -> bool:
    """Put back what only this rank holds, if ranks of the same layout wrote it; whether that was so. What averaging
    keeps goes back to any ranks."""
    if comm is not None and averages(comm.name):
        comm.load_state_dict(_below(f"{_AVERAGING}{comm.name}/", tensors))
    if isinstance(comm, AutoExchange):
        comm.load_averaging_state_dict(_below(_AVERAGING, tensors))
    if not same_layout:
        return False
    restore_rng(tensors, rank)
    if comm is not None and not averages(comm.name):
        comm.load_state_dict(_below(f"comm/{rank}/{comm.name}/", tensors))
    return True


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One algorithm's own: another's state is nothing to it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def seed_everything(seed: int, *salt: int) -> None:
    """Seed torch (all devices), NumPy and Python from (seed, salt...)."""
    words = np.random.SeedSequence([seed, *salt]).generate_state(3, dtype=np.uint64)
    torch.manual_seed(int(words[0]))
    np.random.seed(int(words[1]) & 0xFFFFFFFF)
    random.seed(int(words[2]))
