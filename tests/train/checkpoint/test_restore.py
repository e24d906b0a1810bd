"""Ranks agree on what a checkpoint's fault is: damage is told to the ledger, a store that is away is not damage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elastic_core.domain import Layout, Slot
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.protocol.records import CheckpointRecord
from elastic_core.state.format.checkpoint_format import (
    checkpoint_uri,
    plan_writers,
    read_manifest,
    write_manifest,
    write_shard,
)
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.train.checkpoint.restore import Restored, restore
from elastic_core.train.parallel.group import Group
from tests.state.builders import HEADER, same_bits
from tests.state.loading_ranks import Threads
from tests.state.reshard.test_collective_load import Silent

SLOTS = tuple(Slot("n", index, "cpu") for index in range(2))


class ThreadGroup(Group):
    """Of ranks that are threads."""

    def __init__(self, rank: int, threads: Threads) -> None:
        super().__init__(rank, len(SLOTS))
        self._exchange = threads.of(rank)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return list(self._exchange(data))


def tensors_of(step: int) -> dict[str, torch.Tensor]:
    return {f"model/{i}": torch.full((100,), 10.0 * step + i) for i in range(4)} | {
        f"rng/cpu/{rank}": torch.full((8,), step + rank, dtype=torch.uint8) for rank in range(2)
    }


def save(store: CheckpointStore, step: int) -> CheckpointRecord:
    header, tensors = replace(HEADER, step=step), tensors_of(step)
    uri = checkpoint_uri(header, "x")
    shares = plan_writers({name: 1 for name in tensors}, 2)
    infos = [write_shard(store, uri, rank, {n: tensors[n] for n in names}) for rank, names in enumerate(shares)]
    written = write_manifest(store, uri, infos, header, {"step": step, "world": 2})
    return CheckpointRecord(
        checkpoint_id=step, job_id="job-1", lineage=2, step=step, samples=step, epoch=7, segment_id="", uri=uri,
        manifest_sha256=written.sha256, size_bytes=written.size_bytes, layout=Layout(data=2), metrics={},
        committed_at=0.0, final=False, bad=False,
    )  # fmt: skip


def on_two(
    store: CheckpointStore,
    records: Sequence[CheckpointRecord],
    of_rank_1: Callable[[CheckpointStore], CheckpointStore] = lambda store: store,
    boxes_of_rank_1: Callable[[object], None] = lambda _: None,
    layout: Layout = Layout(data=2),  # noqa: B008 - frozen
) -> tuple[list[Restored | Exception], list[tuple[int, str]]]:
    threads, bad = Threads(2), []

    def rank(number: int) -> Restored | Exception:
        mine = of_rank_1(store) if number == 1 else store
        mark_bad = (lambda *told: bad.append(told)) if number == 0 else None
        boxes = boxes_of_rank_1 if number == 1 else None
        try:
            return restore(tuple(records), mine, ThreadGroup(number, threads), SLOTS, layout, mark_bad, boxes)
        except (InfrastructureError, UserError) as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(rank, range(2))), bad


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def test_each_rank_gets_what_all_share_and_its_own(store: LocalStore) -> None:
    results, bad = on_two(store, [save(store, 3)])
    assert bad == []
    for rank, found in enumerate(results):
        assert isinstance(found, Restored)
        wanted = {n: t for n, t in tensors_of(3).items() if not n.startswith("rng/") or n == f"rng/cpu/{rank}"}
        assert found.tensors.keys() == wanted.keys()
        assert all(same_bits(found.tensors[name], tensor) for name, tensor in wanted.items())
        assert found.scalars == {"step": 3, "world": 2}


def test_what_belongs_to_one_rank_is_not_read_in_another_layout(store: LocalStore) -> None:
    results, _ = on_two(store, [save(store, 3)], layout=Layout(tensor=2))
    for found in results:
        assert isinstance(found, Restored)
        assert found.tensors.keys() == {name for name in tensors_of(3) if name.startswith("model/")}
        assert not found.same_ranks


@pytest.mark.parametrize("name", ["model/0", "model/3", "rng/cpu/0", "rng/cpu/1"])
def test_damage_anywhere_is_told_once_and_the_one_before_is_used_by_all(store: LocalStore, name: str) -> None:
    old, new = save(store, 3), save(store, 4)
    (tile,) = read_manifest(store, new.uri).tensors[name].tiles
    path = Path(store.url) / new.uri / tile.file
    data = bytearray(path.read_bytes())
    data[tile.offset] ^= 1
    path.write_bytes(data)
    results, bad = on_two(store, [new, old])
    assert [found.record for found in results if isinstance(found, Restored)] == [old, old]
    ((number, why),) = bad
    assert number == new.checkpoint_id
    assert why.startswith(f"Checkpoint {new.uri}: {path.name}: tile [0:")
    assert f"of {name} has CRC-32C" in why


def test_where_none_can_be_read_none_is_given_up_since_the_store_may_be_away(store: LocalStore) -> None:
    records = [save(store, step) for step in (5, 4, 3)]
    root = Path(store.url)
    root.rename(root.with_name("away"))
    root.mkdir()  # the mount point, without what is mounted there
    results, bad = on_two(store, records)
    assert [type(found) for found in results] == [InfrastructureError] * 2
    assert "None of the 3 checkpoints of the job can be read" in str(results[0])
    assert "is it mounted?" in str(results[0])
    assert bad == []


def test_the_ledger_is_told_of_an_only_one_and_says_what_can_be_done(store: LocalStore) -> None:
    record = save(store, 3)
    store.delete(record.uri)
    results, bad = on_two(store, [record])
    assert [type(found) for found in results] == [InfrastructureError] * 2
    assert [number for number, _ in bad] == [record.checkpoint_id]


def test_a_store_that_is_away_for_one_rank_is_no_damage_and_ends_it_for_both(store: LocalStore) -> None:
    results, bad = on_two(store, [save(store, 4), save(store, 3)], of_rank_1=Silent)
    assert [type(found) for found in results] == [InfrastructureError] * 2
    assert all("rank 1: The store does not answer." in str(found) for found in results)
    assert bad == []


def test_what_the_user_got_wrong_on_one_rank_is_said_by_both(store: LocalStore) -> None:
    def another_model(manifest: object) -> None:
        raise UserError("The checkpoint is of another model.")

    results, bad = on_two(store, [save(store, 3)], boxes_of_rank_1=another_model)
    assert [(type(found), str(found)) for found in results] == [(UserError, "The checkpoint is of another model.")] * 2
    assert bad == []
