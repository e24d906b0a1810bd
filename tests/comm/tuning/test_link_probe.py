"""A link's latency and rate: what is exact is found, and no noise makes a term negative."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.comm.tuning.link_probe import BUDGET_SECONDS, fit, probe, sustained
from elastic_core.domain import Link
from tests.comm import ranks

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22)
LATENCIES, PER_BYTE = st.floats(1e-6, 0.1), st.floats(1e-11, 1e-6)


def misfit(link: Link, times: list[tuple[int, float]]) -> float:
    return sum(((link.latency + size * link.seconds_per_byte - seconds) / seconds) ** 2 for size, seconds in times)


@given(LATENCIES, PER_BYTE)
def test_times_of_a_line_give_the_line(latency, per_byte):
    link = fit([(size, latency + size * per_byte) for size in SIZES])
    for size in SIZES:
        assert link.latency + size * link.seconds_per_byte == pytest.approx(latency + size * per_byte, rel=1e-5)


@given(st.lists(st.tuples(st.sampled_from(SIZES), st.floats(1e-5, 1.0)), min_size=1, max_size=12),
       st.floats(0, 1.0), st.floats(0, 1e-4))  # fmt: skip
def test_no_terms_that_are_not_negative_fit_better(times, latency, per_byte):
    link = fit(times)
    assert link.latency >= 0
    assert link.seconds_per_byte >= 0
    assert misfit(link, times) <= misfit(Link(latency, per_byte), times) * (1 + 1e-9) + 1e-9


@given(LATENCIES, PER_BYTE, st.floats(1.0, 1e4))
def test_a_burst_that_passes_at_once_does_not_hide_how_fast_a_link_goes_on(latency, per_byte, faster):
    times = [(size, latency + size * per_byte / faster) for size in SIZES[:-1]]
    times.append((SIZES[-1], latency + SIZES[-1] * per_byte))
    link = sustained(times)
    assert link.latency + SIZES[-1] * link.seconds_per_byte >= times[-1][1] * (1 - 1e-9)
    assert link.latency == fit(times).latency


def probed(rank: int, world: int, among: list[int] | None = None) -> None:
    started = time.perf_counter()
    link = probe(among=among)
    took = time.perf_counter() - started
    told: list[Link] = [None] * world
    dist.all_gather_object(told, link)
    assert len(set(told)) == 1, "the same on every rank"
    assert 0 <= link.latency < BUDGET_SECONDS
    assert 0 <= link.seconds_per_byte < 1e-6, "this machine carries a megabyte a second"
    assert took < 60


@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_agree_on_their_link(world, tmp_path):
    ranks.run(probed, tmp_path, world)


@pytest.mark.parametrize("among", [[0, 2], [0, 1, 3]])
def test_some_of_them_may_be_probed_alone(among, tmp_path):
    ranks.run(probed, tmp_path, 4, among)
