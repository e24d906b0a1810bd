"""Jobs of the examples that other libraries' objects say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from elastic_core.domain import Layout
from elastic_core.state.format.checkpoint_format import read_manifest, read_tensors
from elastic_core.state.stores.local_store import LocalStore
from tests.train.job import Job

DIGITS = 1497  # images to train on


def digits_job(new_job: Callable[..., Job], name: str, entry_point: str, samples: int, **spec: Any) -> Job:
    return new_job(
        name, rows=DIGITS, total=samples, entry="", tasks="examples.*,tests.train.*",
        spec={"entry_point": entry_point, "audit": "full", "seed": 3, **spec},
    )  # fmt: skip


def assert_resizes_change_no_weight(
    new_job: Callable[..., Job], entry_point: str, resized: Sequence[int | Layout], atol: float, **spec: Any
) -> Job:
    """Twelve steps by two ranks, and four by each of two, then `resized`, ranks or a layout: the same weights, up to
    the order of sums. Gives the job that was resized."""
    whole, cut = (digits_job(new_job, name, entry_point, samples=12 * 30, **spec) for name in ("whole", "cut"))
    assert whole.run(2, 30) == [0, 0], whole.logs()
    for to, steps in zip((2, *resized), (4, 4, None), strict=True):
        layout = to if isinstance(to, Layout) else Layout(data=to)
        ranks = layout.world_size
        assert cut.run(ranks, 30, layout=layout, segment_steps=steps) == [0] * ranks, cut.logs()
    assert cut.ledger.commits()[-1].finished
    want, got = final_weights(whole), final_weights(cut)
    assert want.keys() == got.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-3, atol=atol)
    return cut


def final_weights(job: Job) -> Mapping[str, Tensor]:
    store = LocalStore(job.store)
    tensors = read_tensors(store, read_manifest(store, job.ledger.commits()[-1].uri))
    return {name: tensor for name, tensor in tensors.items() if name.startswith("model/")}
