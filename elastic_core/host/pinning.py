"""Which device and which cores a rank gets, from its slot alone.

Every worker sees its own device only (CUDA_VISIBLE_DEVICES), and CPU slots share the host's cores without overlap.
Nothing is measured, and no NUMA node is known here. Standard library only: see `launch.agent`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from elastic_core.errors import UserError


class SlotLike(Protocol):
    @property
    def type(self) -> str: ...
    @property
    def index(self) -> int: ...


def device_variables(slot: SlotLike, environ: Mapping[str, str]) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES and LOCAL_RANK of the rank on `slot`.

    A CPU rank sees no device. Where the host shows only some devices (CUDA_VISIBLE_DEVICES=4,5), slot i is the
    i-th of those shown. Raises `UserError` for a slot beyond them: another device may be somebody else's.
    """
    if slot.type == "cpu":
        return {"LOCAL_RANK": str(slot.index), "CUDA_VISIBLE_DEVICES": ""}
    shown = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if shown and slot.index >= len(shown):
        raise UserError(
            f"slot {slot.index} of type {slot.type!r} has no device here: CUDA_VISIBLE_DEVICES={','.join(shown)} shows "
            f"{len(shown)}. Give this node {len(shown)} slots, or show it more devices."
        )
    return {"LOCAL_RANK": str(slot.index), "CUDA_VISIBLE_DEVICES": shown[slot.index] if shown else str(slot.index)}


def cores(slot: SlotLike, cpu_slots: Sequence[SlotLike], available: Sequence[int]) -> tuple[int, ...]:
    """The cores of a CPU slot: an equal share, disjoint from every other slot's of this host.

    `cpu_slots` are all CPU slots that the host serves, in their order. () means: do not pin, because there are fewer
    cores than slots (the kernel shares them better than we could) or the slot is no CPU slot.
    """
    if slot not in cpu_slots or len(available) < len(cpu_slots):
        return ()
    share = len(available) // len(cpu_slots)
    first = list(cpu_slots).index(slot) * share
    return tuple(available[first : first + share])
