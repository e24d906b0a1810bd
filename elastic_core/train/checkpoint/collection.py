"""What the ranks of a job hold together, where each holds a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.layout import StateLayout, TensorMeta


@dataclass(frozen=True, slots=True)
class Collection:
    """And this rank's parts of it."""

    layout: StateLayout
    metas: Mapping[str, TensorMeta]
    parts: Mapping[str, Tensor]
    boxes: Mapping[str, Box]  # that are this rank's to write; each is its part of the tensor
