"""Libraries that start a process group by themselves where the environment names one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

# What torchrun, accelerate and Lightning know a group by (https://docs.pytorch.org/docs/stable/elastic/run.html).
GROUP_VARIABLES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
)  # fmt: skip


@contextmanager
def one_process() -> Iterator[None]:
    """Within, this process is the only one as far as its environment tells. For one thread."""
    hidden = {name: os.environ.pop(name) for name in GROUP_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
