"""The laws of what ranks read when: everything once, within an outbox, and nothing over what is still being taken."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_core.state import boxes as boxes_module
from elastic_core.state import rounds, writing
from elastic_core.state.boxes import TILE_BYTES, Box
from elastic_core.state.layout import DATA, REPLICATED, Mesh, StateLayout, TensorMeta, partition
from elastic_core.state.reshard import plan_reading
from elastic_core.state.rounds import Round, rounds_of, runs_of
from elastic_core.state.stores_local import LocalStore
from tests.state.changing_ranks import state_of
from tests.state.random_layouts import layouts_of, models, slots
from tests.state.test_transform import save

TILE = 64


def taken(one: Round) -> set[int]:
    """Bytes of the outbox that its parcels take."""
    places = [range(p.place, p.place + p.num_bytes) for p in one.parcels if p.place is not None]
    assert sum(map(len, places)) == len({byte for place in places for byte in place})  # no two take the same
    return {byte for place in places for byte in place}


def volume(boxes: Iterable[Box]) -> int:
    return sum(box.volume for box in boxes)


@given(data=st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
def test_rounds_hold_everything_once_and_two_in_a_row_lie_apart(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    metas = data.draw(models())
    old, new = data.draw(layouts_of(metas, 4)), data.draw(layouts_of(metas, 4))
    places = slots(new.world, per_node=data.draw(st.integers(1, 4)))
    outbox = data.draw(st.integers(4 * TILE, 1024))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "tiles", lambda box, itemsize: boxes_module.tiles(box, itemsize, TILE))
        patch.setattr(rounds, "_OUTBOX_BYTES", outbox)
        manifest = save(LocalStore(tmp_path_factory.mktemp("store")), old, metas, state_of(metas, 3))
        wanted = partition(new, metas)
        tiles = {name: [tile.box for tile in manifest.tensors[name].tiles] for name in metas}
        pieces = plan_reading(metas, wanted, places, tiles, runs_of(manifest, metas))
        found = rounds_of(pieces, manifest, places, [1 << 20] * new.world)
    for rank, its in enumerate(found):
        assert all(0 <= byte < one.end <= outbox for one in its for byte in taken(one))
        assert all(taken(one).isdisjoint(taken(following)) for one, following in pairwise(its))
        mine = [piece for piece in pieces if piece.fetcher == rank]
        assert volume(p.box for one in its for p in one.parcels) == volume(piece.box for piece in mine)
        assert all((p.place is None) == (p.targets == (rank,)) for one in its for p in one.parcels)


def test_an_outbox_is_a_tile(tmp_path: Path) -> None:
    metas = {f"model/{i}": TensorMeta("float32", (1024, 512 << i)) for i in range(4)}  # 2 to 16 MiB
    four = StateLayout(Mesh((DATA,), (4,)), dict.fromkeys(metas, REPLICATED), slots(4))
    manifest = save(LocalStore(tmp_path), four, metas, state_of(metas, 1))
    tiles = {name: [tile.box for tile in manifest.tensors[name].tiles] for name in metas}
    pieces = plan_reading(metas, partition(four, metas), four.slots, tiles, runs_of(manifest, metas))
    found = rounds_of(pieces, manifest, four.slots, [1 << 40] * 4)
    assert TILE_BYTES <= max(one.end for its in found for one in its) < 1.01 * TILE_BYTES
