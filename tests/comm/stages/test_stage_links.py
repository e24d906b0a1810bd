"""The slowest link shrinks by what was asked for, others by as much less as they are faster, quick ones not at all."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.comm.stages.stage_links import NO_TIME, probe_stages, ratios
from elastic_core.domain import Link
from tests.comm import ranks

LINKS = st.lists(st.builds(Link, st.floats(0, 0.1), st.floats(0, 1e-6)), min_size=1, max_size=6)


@given(LINKS, st.integers(1, 10**8), st.floats(1.01, 1000))
def test_ratios_follow_times(links, size, most):
    found = ratios(links, [size] * len(links), most)
    seconds = [link.latency + size * link.seconds_per_byte for link in links]
    for ratio, taken in zip(found, seconds, strict=True):
        assert 1.0 <= ratio <= most * (1 + 1e-9)
        assert ratio == 1.0 or ratio == pytest.approx(most * taken / max(seconds))
        assert taken > NO_TIME or ratio == 1.0
    if max(seconds) > NO_TIME:
        assert max(found) == pytest.approx(most)


def probed(rank: int, world: int) -> None:
    links = probe_stages(dist.group.WORLD, world)
    told: list[list[Link]] = [None] * world
    dist.all_gather_object(told, links)
    assert len(links) == world - 1
    assert all(known == links for known in told), "the same on every rank"
    assert all(0 <= link.latency < 1 and link.seconds_per_byte >= 0 for link in links)


def test_ranks_agree_on_the_links_between_them(tmp_path):
    ranks.run(probed, tmp_path, 3)
