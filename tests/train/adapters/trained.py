"""Jobs of the examples that other libraries' objects say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from elastic_core.state.format.checkpoint_format import read_manifest, read_tensors
from elastic_core.state.stores.local_store import LocalStore
from tests.train.job import Job

DIGITS = 1497  # images to train on


def digits_job(new_job: Callable[..., Job], name: str, entry_point: str, samples: int, **spec: Any) -> Job:
    return new_job(
        name, rows=DIGITS, total=samples, entry="", tasks="examples.*",
        spec={"entry_point": entry_point, "audit": "full", "seed": 3, **spec},
    )  # fmt: skip


def final_weights(job: Job) -> Mapping[str, Tensor]:
    store = LocalStore(job.store)
    tensors = read_tensors(store, read_manifest(store, job.ledger.commits()[-1].uri))
    return {name: tensor for name, tensor in tensors.items() if name.startswith("model/")}
