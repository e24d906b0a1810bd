"""Parquet files as a data set, on disk and in S3: real files, real requests, faults in words, blocks fetched once."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.state.stores import s3_store
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.blocks import BlockDataset
from elastic_core.train.data.batches import DataPlan, Reader, plan_step
from elastic_core.train.parquet import ParquetFiles
from tests.state.conftest import BUCKET, Server, credentials, free_port, rclone

__all__ = ["credentials", "rclone"]

ROWS, GROUP = (25, 10, 17), 6


def write_files(folder: Path) -> None:
    """Three files of row groups of 6 rows and a shorter last one; column `index` counts on over all of them."""
    done = 0
    for i, rows in enumerate(ROWS):
        index = np.arange(done, done + rows)
        table = pa.table(
            {
                "index": index,
                "x": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(index, 3).astype("float32")), 3),
                "text": [f"row {n}" for n in index],
            }
        )
        (folder / f"part={i}").mkdir(parents=True)
        pq.write_table(table, folder / f"part={i}" / "rows.parquet", row_group_size=GROUP)
        done += rows
    (folder / "_not_data.parquet").write_bytes(b"x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_files(folder)
    return folder


def test_rows_of_all_files_come_by_index_in_the_order_of_their_names(folder: Path) -> None:
    data = ParquetFiles(str(folder), window=2)
    assert len(data) == sum(ROWS)
    assert data.blocks.rows == (6, 6, 6, 6, 1, 6, 4, 6, 6, 5)
    for index in (0, 24, 25, 51):
        row = data[index]
        assert (row["index"], row["text"], row["x"].tolist()) == (index, f"row {index}", [index] * 3)
    assert [row["index"] for row in data.__getitems__([51, 3, 30, 3])] == [51, 3, 30, 3]
    with pytest.raises(IndexError, match=r"outside \[0, 52\)"):
        data[52]


def test_batches_become_tensors_and_only_the_named_columns_are_read(folder: Path) -> None:
    data = ParquetFiles(str(folder / "part=1" / "rows.parquet"), ["x", "index"])
    batch = Reader(data, None, torch.device("cpu")).read(np.array([1, 0]))
    assert batch["x"].dtype == torch.float32
    assert batch["index"].tolist() == [26, 25]
    assert batch.keys() == {"x", "index"}
    pairs = ParquetFiles(str(folder), ["x", "index"], transform=lambda row: (row["x"], int(row["index"]) % 2))
    x, y = Reader(pairs, None, torch.device("cpu")).read(np.array([7]))
    assert (x.tolist(), y.tolist()) == ([[7.0] * 3], [1])


def test_gaps_stay_gaps(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1.5, None], "b": ["x", None]}).to_parquet(tmp_path / "one.parquet")
    data = ParquetFiles(str(tmp_path))
    assert data[1] == {"a": None, "b": None}
    assert data[0] == {"a": 1.5, "b": "x"}


class Counted(BlockDataset):
    """Which blocks were fetched, in their order."""

    def __init__(self, rows: list[int], window: int) -> None:
        super().__init__(window)
        self.rows, self.fetched = rows, []

    @property
    def block_rows(self) -> list[int]:
        return self.rows

    def read_block(self, number: int) -> list[tuple[int, int]]:
        self.fetched.append(number)
        return [(number, row) for row in range(self.rows[number])]


def fetched(world: int, num_blocks: int = 64, window: int = 16) -> int:
    """Blocks that all ranks together fetch in one epoch."""
    ranks = [Counted([20] * num_blocks, window) for _ in range(world)]
    total = 20 * num_blocks
    for cursor in range(0, total, 80):
        for rank, data in enumerate(ranks):
            plan = DataPlan(3, total, total, None, data.blocks)
            for micro in plan_step(plan, cursor, 80, rank, world).micro:
                data.__getitems__(micro.indices.tolist())
    return sum(len(data.fetched) for data in ranks)


def test_one_rank_fetches_each_block_once_an_epoch_and_four_share_a_window_out() -> None:
    assert fetched(1) == 64
    assert fetched(4) <= 1.6 * 64  # each reading all would be 4 x 64


def test_a_block_that_changed_is_refused() -> None:
    data = Counted([3, 3], 1)
    data.blocks  # noqa: B018 - as announced
    data.rows = [3, 2]
    with pytest.raises(UserError, match="Block 1 of the data has 2 samples, announced were 3"):
        data[4]


@pytest.fixture
def bucket(folder: Path, rclone: Server) -> str:
    prefix = secrets.token_hex(4)
    store = open_store(f"s3://{BUCKET}/{prefix}", endpoint=rclone.endpoint)
    for path in folder.rglob("*.parquet"):
        store.put(path.relative_to(folder).as_posix(), path)
    return f"s3://{BUCKET}/{prefix}"


def test_s3_gives_the_same_samples_by_ranges_and_tries_again(
    bucket: str, folder: Path, rclone: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ParquetFiles(bucket, window=3, endpoint=rclone.endpoint)
    requests: list[str] = []
    get = data._store._s3.get_object  # type: ignore[attr-defined]

    def failing_at_first(**arguments: Any) -> Any:
        requests.append(arguments.get("Range", "all"))
        if len(requests) <= 2:
            raise ConnectionResetError("the network hiccups")
        return get(**arguments)

    monkeypatch.setattr(data._store._s3, "get_object", failing_at_first)  # type: ignore[attr-defined]
    local = ParquetFiles(str(folder), window=3)
    order = data.blocks.permute(1, 0, np.arange(52)).tolist()
    for at in range(0, 52, 13):
        ours, theirs = data.__getitems__(order[at : at + 13]), local.__getitems__(order[at : at + 13])
        assert [row["text"] for row in ours] == [row["text"] for row in theirs] == [f"row {n}" for n in order[at : at + 13]]  # fmt: skip  # noqa: E501
    assert "all" not in requests
    assert len(requests) >= 12


def test_a_server_that_is_gone_is_an_infrastructure_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_store, "_ATTEMPTS", 1)
    with pytest.raises(InfrastructureError, match="Cannot list"):
        ParquetFiles(f"s3://{BUCKET}/x", endpoint=f"http://127.0.0.1:{free_port()}")


def test_files_that_cannot_be_read_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no parquet file at"):
        ParquetFiles(str(tmp_path))
    with pytest.raises(UserError, match=r"has no columns \['y'\]; it has index, x, text"):
        ParquetFiles(str(folder), ["y"])
    (tmp_path / "a.parquet").write_bytes(b"PAR1 is not all")
    with pytest.raises(UserError, match=r"a.parquet in .* cannot be read as parquet"):
        ParquetFiles(str(tmp_path))
    pd.DataFrame({"v": [1]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"v": ["x"]}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"Column 'v' is int64 in a.parquet and (large_)?string in b.parquet"):
        ParquetFiles(str(tmp_path))
    data = ParquetFiles(str(folder))
    (tmp_path / "b.parquet").unlink()
    data = ParquetFiles(str(tmp_path))
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(UserError, match="no longer what it was"):
        data[0]
