"""The laws of what ranks read when: all once, within a staging buffer, nothing over what is still being copied out."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_core.state.format import writing
from elastic_core.state.layout import boxes as boxes_module
from elastic_core.state.layout.boxes import TILE_BYTES, Box
from elastic_core.state.layout.layout import (
    DATA,
    REPLICATED,
    Mesh,
    Placement,
    Split,
    StateLayout,
    TensorMeta,
    partition,
)
from elastic_core.state.reshard import rounds
from elastic_core.state.reshard.change_plan import plan_load
from elastic_core.state.reshard.rounds import Round, rounds_of, runs_of
from elastic_core.state.stores.local_store import LocalStore
from tests.state.changing_ranks import state_of
from tests.state.loading_ranks import save
from tests.state.random_layouts import layouts_of, models, slots

TILE = 64


def taken(one: Round) -> set[int]:
    """Bytes of the staging buffer that lie in it for others."""
    staged = {tile_part.staged for tile_part in one.tile_parts if tile_part.staged is not None}
    places = [range(one.place, one.end) for one in staged]
    assert sum(map(len, places)) == len({byte for place in places for byte in place})  # no two take the same
    return {byte for place in places for byte in place}


def volume(boxes: Iterable[Box]) -> int:
    return sum(box.volume for box in boxes)


@given(data=st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
def test_rounds_hold_everything_once_and_what_is_used_at_the_same_time_lies_apart(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    metas = data.draw(models())
    old, new = data.draw(layouts_of(metas, 4)), data.draw(layouts_of(metas, 4))
    places = slots(new.world, per_node=data.draw(st.integers(1, 4)))
    staging_buffer = data.draw(st.integers(4 * TILE, 1024))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "tiles", lambda box, itemsize: boxes_module.tiles(box, itemsize, TILE))
        patch.setattr(rounds, "_STAGING_BYTES", staging_buffer)
        patch.setattr(rounds, "_SPARE_BYTES", TILE)
        manifest = save(LocalStore(tmp_path_factory.mktemp("store")), old, metas, state_of(metas, 3))
        wanted = partition(new, metas)
        tiles = {name: [tile.box for tile in manifest.tensors[name].tiles] for name in metas}
        pieces = plan_load(metas, {}, wanted, places, tiles, runs_of(manifest, metas))
        found = rounds_of(pieces, metas, manifest, wanted, places, [1 << 20] * new.world)
    for rank, its in enumerate(found):
        assert all(one.end <= staging_buffer and taken(one) <= set(one.taken) for one in its)
        for before, one in pairwise([Round(), *its]):
            parts = [set(before.taken), set(one.taken), set(one.scratch)]
            assert sum(map(len, parts)) == len(set.union(*parts))
        if any(one.taken for one in its):
            assert all(len(one.scratch) >= TILE for one in its if one.tile_parts)
        mine = [piece for piece in pieces if piece.fetcher == rank]
        assert volume(p.box for one in its for p in one.tile_parts) == volume(piece.box for piece in mine)
        for one in its:
            for tile_part in one.tile_parts:
                assert tile_part.staged is not None or tile_part.targets == (rank,)
                assert tile_part.staged is None or tile_part.staged.box.intersect(tile_part.box) == tile_part.box


METAS = {f"model/{i}": TensorMeta("float32", (1024, 512 << i)) for i in range(4)}  # 2 to 16 MiB
WHOLE = StateLayout(Mesh((DATA,), (4,)), dict.fromkeys(METAS, REPLICATED), slots(4))
BY_COLUMNS = StateLayout(Mesh((DATA,), (4,)), dict.fromkeys(METAS, Placement((Split(DATA, 1),))), slots(4))
BY_ROWS = StateLayout(Mesh((DATA,), (3,)), dict.fromkeys(METAS, Placement((Split(DATA, 0),))), slots(3))


@pytest.mark.parametrize(
    ("layout", "at_least"),
    [(WHOLE, TILE_BYTES), (BY_COLUMNS, TILE_BYTES), (BY_ROWS, TILE_BYTES * 2 // 3)],  # of rows a third is the reader's
    ids=["whole", "columns", "rows"],
)
def test_all_memory_beside_a_ranks_own_is_a_tile(tmp_path: Path, layout: StateLayout, at_least: int) -> None:
    manifest = save(LocalStore(tmp_path), WHOLE, METAS, state_of(METAS, 1))
    tiles = {name: [tile.box for tile in manifest.tensors[name].tiles] for name in METAS}
    wanted = partition(layout, METAS)
    pieces = plan_load(METAS, {}, wanted, layout.slots, tiles, runs_of(manifest, METAS))
    found = rounds_of(pieces, METAS, manifest, wanted, layout.slots, [1 << 40] * layout.world)
    assert at_least <= max(one.end for its in found for one in its) < 1.01 * TILE_BYTES
