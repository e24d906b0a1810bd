"""The rival: a task of `examples` in the loop that its user would write, in plain torch, on the core it is pinned to.

    python -m benchmarks.overhead.bare_loop '{"entry_point": "examples.digits:Digits", "params": {}, "batch": 64, ...}'

Model, optimizer, data and loss are the task's; samples come shuffled from torch's DataLoader. Prints steps a second.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader

WARM_SECONDS = 3.0


def main(wanted: dict[str, Any]) -> float:
    os.sched_setaffinity(0, {wanted["core"]})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, _, name = wanted["entry_point"].partition(":")
    kind = getattr(importlib.import_module(module), name)
    task = kind(kind.Params(**wanted["params"]))
    model = task.model()
    optimizer = task.optimizer(model)
    loader = DataLoader(task.dataset(), batch_size=wanted["batch"], shuffle=True, drop_last=True)
    steps, began = 0, time.perf_counter()
    measured_from: tuple[float, int] | None = None
    while True:
        for batch in loader:
            optimizer.zero_grad(set_to_none=True)
            task.loss(model, batch).backward()
            optimizer.step()
            steps += 1
            now = time.perf_counter()
            if measured_from is None and now - began >= WARM_SECONDS:
                measured_from = now, steps
            if measured_from is not None and now - measured_from[0] >= wanted["seconds"]:
                return (steps - measured_from[1]) / (now - measured_from[0])


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
