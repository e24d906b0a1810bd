"""Random states and layouts: models and optimizer moments under data, sharded-data, tensor and pipeline parallelism."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from elastic_core.domain import Slot
from elastic_core.state.layout.layout import (
    AXES,
    DATA,
    PIPELINE,
    REPLICATED,
    TENSOR,
    Mesh,
    Placement,
    Split,
    StateLayout,
    TensorMeta,
)

SIZES = [(p, d, t) for p in (1, 2, 3, 4) for d in range(1, 9) for t in (1, 2, 3, 4) if p * d * t <= 8]


def slots(count: int, per_node: int = 8) -> tuple[Slot, ...]:
    return tuple(Slot(f"node-{i // per_node}", i % per_node, "cpu") for i in range(count))


@st.composite
def models(draw: st.DrawFn, optimizer: str | None = None, dtype: str | None = None) -> dict[str, TensorMeta]:
    """Parameters of a few layers, and the moments of SGD (one) or AdamW (two, and the step) in float32."""
    dtype = dtype or draw(st.sampled_from(["float32", "bfloat16"]))
    optimizer = optimizer or draw(st.sampled_from(["sgd", "adamw"]))
    moments = {"sgd": ("momentum_buffer",), "adamw": ("exp_avg", "exp_avg_sq")}[optimizer]
    metas: dict[str, TensorMeta] = {}
    for layer in range(draw(st.integers(1, 4))):
        shapes = {"weight": (draw(st.integers(1, 9)), draw(st.integers(1, 9))), "bias": (draw(st.integers(1, 9)),)}
        for kind, shape in shapes.items():
            name = f"layers.{layer}.{kind}"
            metas[f"model/{name}"] = TensorMeta(dtype, shape)
            metas.update({f"optim/{name}/{moment}": TensorMeta(dtype, shape) for moment in moments})
            if optimizer == "adamw":
                metas[f"optim/{name}/step"] = TensorMeta("float32", ())
    return metas


def placed(metas: Mapping[str, TensorMeta], sizes: Sequence[int], sharded: bool, split: Sequence[int]) -> StateLayout:
    """As the runtime would place a model: layers to stages by `split`, tensor cuts alternating between columns and
    rows, and with `sharded` every parameter and moment cut over the data axis along dim 0, after the tensor cut."""
    mesh = Mesh(AXES, tuple(sizes))
    placements = {}
    for name, meta in metas.items():
        layer = int(name.split("layers.")[1].split(".")[0])
        cuts = []
        if meta.shape and mesh.size(TENSOR) > 1 and not (len(meta.shape) == 1 and layer % 2):
            cuts.append(Split(TENSOR, layer % 2 if len(meta.shape) > 1 else 0))
        if meta.shape and sharded:
            cuts.append(Split(DATA, 0))
        at = {PIPELINE: (split[layer],)} if mesh.size(PIPELINE) > 1 else {}
        placements[name] = Placement(tuple(cuts), at) if cuts or at else REPLICATED
    return StateLayout(mesh, placements, slots(mesh.world))


@st.composite
def layouts_of(draw: st.DrawFn, metas: Mapping[str, TensorMeta], max_world: int = 8) -> StateLayout:
    sizes = draw(st.sampled_from([size for size in SIZES if math.prod(size) <= max_world]))
    num_layers = 1 + max(int(name.split("layers.")[1].split(".")[0]) for name in metas)
    split = sorted(draw(st.lists(st.integers(0, sizes[0] - 1), min_size=num_layers, max_size=num_layers)))
    return placed(metas, sizes, draw(st.booleans()), split)


@st.composite
def random_cases(draw: st.DrawFn) -> tuple[dict[str, TensorMeta], StateLayout]:
    metas = draw(models())
    return metas, draw(layouts_of(metas))
