"""By how much each link of a pipeline shrinks what goes over it: adaptive top-k (FusionLLM, Tang et al. 2024, arXiv
2410.12707).

Every link between neighbours is probed, and how long it takes for a micro-batch's activations is predicted. The slowest
shrinks them by the ratio that was asked for, another by as much less as it is faster, and one that takes them in no
time not at all: what does not hold anybody up loses nothing. Ratios are of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from elastic_core.comm.tuning.link_probe import BUDGET_SECONDS, probe
from elastic_core.domain import Link

NO_TIME = 1e-3  # seconds for a micro-batch's activations


def probe_stages(group: dist.ProcessGroup, stages: int) -> list[Link]:
    """From each stage to the next, of a group with a rank for each. Collective; the same on every rank."""
    return [probe(group, (stage, stage + 1), BUDGET_SECONDS / (stages - 1)) for stage in range(stages - 1)]


def ratios(links: Sequence[Link], sizes: Sequence[int], most: float) -> list[float]:
    """Of each link, 1 where nothing shrinks. `sizes`: bytes of a micro-batch's activations over it."""
    seconds = [link.latency + size * link.seconds_per_byte for link, size in zip(links, sizes, strict=True)]
    slowest = max(seconds, default=0.0)
    return [max(1.0, most * taken / slowest) if taken > NO_TIME else 1.0 for taken in seconds]
