"""The click model on slots that are not here: every layer lasts as long as a profile says that it does on its type.

Processes, data order, pulls and pushes of rows, activations between stages, checkpoints, resizes and losses are real;
only time is made, as in `examples.paced`. Types must differ by layer, or mixing them could not win, and shares of one
processor slow all layers alike: so layers are padded by sleeping to the profile's seconds, messages between stages
keep a link busy for their bytes over its rate, and what is larger than a type's memory is refused there. It says
nothing about hardware. `placement/paced-ctr.json` has the layers' times of `placement/ctr.json` on a processor and on
an accelerator named "paced-t4", all 4.2 times as long for a batch of an eighth: this machine's own work is small
beside them.

A layer's seconds on k slots of a stage are compute (1 - alpha + alpha / k), and as many times longer as the stage's
exchange takes longer than its computing: a third forward, the rest backward.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from elastic_core.domain import Allocation
from elastic_core.errors import UserError
from elastic_core.placement.profile_files import PlacementProfile, TypeProfile, read_profile
from elastic_core.train.layouts import Wire
from examples.ctr import CTR, CTRParams

FORWARD = 1 / 3  # of a layer's seconds
STATE_FACTOR = 2  # weights, and Adagrad's sums
PROFILES = Path(__file__).parent / "placement"


class PacedCTRParams(CTRParams):
    rows: int = Field(default=10_000, ge=16, le=1 << 31)
    profile: str = Field(default="paced-ctr", pattern=r"^[\w-]+$", description="a file of examples/placement")
    size: float = Field(default=1.0, ge=0, description="every time of it is so many times as long; 0: none is made")


def profile_of_size(size: float, name: str = "paced-ctr") -> dict[str, Any]:
    """The content of a profile file, for jobs with this `size`."""
    content: dict[str, Any] = json.loads((PROFILES / f"{name}.json").read_text())
    for layer in content["layers"]:
        for times in layer["on"].values():
            times["compute_seconds"] *= size
            times["exchange_seconds"] = times.get("exchange_seconds", 0.0) * size
    for kind in content["types"]:
        kind["link_bytes_per_second"] /= size
    return content


class Pace:
    """What one rank's layers last, by the profile. `layers`, `kind`, `slots`: of its stage."""

    def __init__(self, profile: PlacementProfile, layers: tuple[int, int], kind: str, slots: int, size: float) -> None:
        """Raises `UserError` for a type that the profile does not have."""
        self._profile, self._kind, self._slots, self._size = profile, kind, slots, size
        self._type = _type(profile, kind)
        self._layers = range(*layers)
        ours = [profile.layers[i].on[kind] for i in self._layers]
        computing = sum(times.compute_seconds * _shared(times.alpha, slots) for times in ours)
        exchanging = sum(times.exchange_seconds * _shared(times.beta, slots) for times in ours)
        self._longer = max(1.0, exchanging / computing)

    def seconds(self, layer: int, samples: int) -> float:
        """Of a layer, forward and backward, for so many samples on this rank."""
        times = self._profile.layers[layer].on[self._kind]
        whole = times.compute_seconds * _shared(times.alpha, self._slots) * self._longer
        return self._size * whole * self._slots * samples / self._profile.batch

    def wire(self, num_bytes: int) -> float:
        rate = self._type.link_bytes_per_second
        return 0.0 if rate is None else self._size * num_bytes / rate

    def check_memory(self, layers: Sequence[nn.Module]) -> None:
        """Raises `UserError` where the stage's layers are larger than a slot's memory."""
        weights = sum(p.numel() * p.element_size() for i in self._layers for p in layers[i].parameters())
        held = STATE_FACTOR * weights / (self._slots if self._type.shards_weights else 1)
        if self._type.memory_bytes is not None and held > self._type.memory_bytes:
            names = ", ".join(self._profile.layers[i].name for i in self._layers)
            raise UserError(
                f"{names}: {held:.3g} bytes of weights and their sums do not fit a {self._kind}, which has "
                f"{self._type.memory_bytes:.3g}. Place the table on a type that shares it out, or take fewer rows."
            )

    def attach(self, layers: Sequence[nn.Module], sleep: Callable[[float], None] = time.sleep) -> None:
        """From now on the stage's layers last that long, wherever they are trained."""
        device = Device(sleep)
        for i in self._layers:
            _Padding(partial(self.seconds, i), device).attach(layers[i])


class Device:
    """What a rank's layers take turns on. What this process has computed since the last of them counts as the next
    one's own time, and so does what that ended too late, unless the device had nothing to do meanwhile."""

    def __init__(
        self,
        sleep: Callable[[float], None],
        clock: Callable[[], float] = time.perf_counter,
        work: Callable[[], float] = time.process_time,
    ) -> None:
        """`work`: seconds that this process has computed."""
        self._sleep, self._clock, self._work = sleep, clock, work
        self._began = self._ended = clock()
        self._worked, self._late = work(), 0.0

    def begin(self) -> None:
        now, own = self._clock(), self._work() - self._worked
        idle = max(0.0, now - self._ended - own)
        self._began = now - min(own, now - self._ended) - max(0.0, self._late - idle)

    def end(self, seconds: float) -> None:
        due = self._began + seconds
        self._sleep(max(0.0, due - self._clock()))
        self._ended, self._worked = self._clock(), self._work()
        self._late = max(0.0, self._ended - due)


class _Padding:
    """Of one layer."""

    def __init__(self, seconds: Callable[[int], float], device: Device) -> None:
        self._seconds, self._device = seconds, device

    def attach(self, layer: nn.Module) -> None:
        layer.register_forward_pre_hook(self._begin)
        layer.register_forward_hook(self._end_forward)
        layer.register_full_backward_pre_hook(self._begin)
        layer.register_full_backward_hook(self._end_backward)

    def _begin(self, *_: Any) -> None:
        self._device.begin()

    def _end_forward(self, _layer: nn.Module, inputs: tuple[Tensor, ...], _output: Any) -> None:
        if torch.is_grad_enabled():  # who evaluates the model need not wait
            self._device.end(FORWARD * self._seconds(len(inputs[0])))

    def _end_backward(self, _layer: nn.Module, _inputs: Any, grads: tuple[Tensor, ...]) -> None:
        self._device.end((1 - FORWARD) * self._seconds(len(grads[0])))


class PacedCTR(CTR):
    Params = PacedCTRParams
    params: PacedCTRParams

    def starts_on(self, model: nn.Module, allocation: Allocation, rank: int) -> Wire:
        layers, profile = self.layers(model), read_profile(PROFILES / f"{self.params.profile}.json")
        if len(profile.layers) != len(layers):
            raise UserError(
                f"The profile {self.params.profile} is of {len(profile.layers)} layers, and the model has "
                f"{len(layers)}: with that profile, depth is {len(profile.layers) - 3}."
            )
        pace = Pace(profile, *_stage(allocation, rank, len(layers)), self.params.size)
        pace.check_memory(layers)
        pace.attach(layers)
        return pace.wire


def _stage(allocation: Allocation, rank: int, num_layers: int) -> tuple[tuple[int, int], str, int]:
    """The rank's layers, their type, and how many slots share them."""
    seen = 0
    for stage in allocation.stages:
        seen += stage.num_slots
        if rank < seen:
            return stage.layers, stage.type, stage.num_slots
    return (0, num_layers), allocation.slots[rank].type, allocation.num_slots


def _type(profile: PlacementProfile, name: str) -> TypeProfile:
    for kind in profile.types:
        if kind.name == name:
            return kind
    raise UserError(f"The profile has no type {name!r}; it has {', '.join(kind.name for kind in profile.types)}.")


def _shared(part: float, slots: int) -> float:
    return 1 - part + part / slots
