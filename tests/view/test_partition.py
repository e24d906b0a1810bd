"""What the tree says of the data is what the ranks read: the same order, whoever asks and however it is shared out."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from elastic_core.errors import UserError
from elastic_core.state.format.checkpoint_format import read_manifest, write_manifest
from elastic_core.state.format.manifest import Manifest
from elastic_core.state.order.sample_order import batch_indices
from elastic_core.state.stores.store_urls import open_store
from elastic_core.view import partition
from elastic_core.view.partition import data_folder
from elastic_core.view.tree_nodes import File, Folder
from tests.state.builders import HEADER, URI
from tests.view.builders import DATA, DATASET, SEED, TOTAL, write_job


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    store = open_store(str(tmp_path))
    return read_manifest(store, write_job(store, step=7))


def node(manifest: Manifest, path: str) -> File | Folder | None:
    found: File | Folder | None = data_folder(manifest)
    for part in path.split("/"):
        found = found.child(part) if isinstance(found, Folder) else None
    return found


def content(manifest: Manifest, path: str) -> bytes:
    file = node(manifest, path)
    assert isinstance(file, File), path
    return file.read(0, file.size)


def table(manifest: Manifest, path: str) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(content(manifest, path)))


def test_the_data_ranks_of_every_step_make_up_the_order_exactly(manifest: Manifest) -> None:
    seen = []
    for step in range(5, DATA.last_step + 1):
        ranks = [table(manifest, f"step-{step}/rank-{rank}.csv") for rank in range(4)]
        assert ranks[0].equals(ranks[1])  # tensor-parallel neighbours read the same samples
        assert ranks[2].equals(ranks[3])
        seen.append(pd.concat([ranks[0], ranks[2]]))
    read = pd.concat(seen)
    assert read["sample"].tolist() == list(range(50, TOTAL))
    assert read["index"].tolist() == batch_indices(SEED, DATASET, 50, TOTAL - 50).tolist()
    assert (read["epoch"] == read["sample"] // DATASET).all()


def test_another_batch_and_number_of_ranks_goes_on_from_the_cursor(manifest: Manifest) -> None:
    first = table(manifest, "batch=33,data=3/step-0000000008/rank-1.csv")
    assert first["sample"].tolist() == list(range(110 + 11, 110 + 22))
    assert first["index"].tolist() == batch_indices(SEED, DATASET, 121, 11).tolist()
    assert node(manifest, "batch=33/step-7/rank-0.csv") is None  # it was taken, at another batch
    with pytest.raises(UserError, match="names no way to go on"):
        node(manifest, "data=0")


def test_every_format_says_the_same(manifest: Manifest) -> None:
    wanted = table(manifest, "step-8/rank-2.csv")
    assert wanted["sample"].tolist() == list(range(120, 130))
    assert pd.read_json(io.BytesIO(content(manifest, "step-8/rank-2.json"))).equals(wanted)
    assert pd.read_parquet(io.BytesIO(content(manifest, "step-8/rank-2.parquet"))).equals(wanted)
    assert np.load(io.BytesIO(content(manifest, "step-8/rank-2.npy"))).tolist() == wanted["index"].tolist()


def test_a_rank_without_a_share_reads_nothing(manifest: Manifest) -> None:
    assert len(table(manifest, "batch=1,data=2/step-8/rank-0.csv")) == 1
    empty = table(manifest, "batch=1,data=2/step-8/rank-1.csv")
    assert empty.columns.tolist() == ["sample", "epoch", "index"]
    assert len(empty) == 0


def test_a_listing_shows_the_steps_around_the_checkpoint_and_any_other_can_be_named(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = data_folder(manifest)
    assert folder is not None
    assert list(folder.names()) == ["order.json", *(f"step-{n:010d}" for n in range(5, 18))]
    monkeypatch.setattr(partition, "NUM_LISTED", 2)
    folder = data_folder(manifest)
    assert folder is not None
    assert list(folder.names()) == ["order.json", *(f"step-{n:010d}" for n in range(6, 10))]
    assert node(manifest, "step-17/rank-0.csv") is not None
    ranks = node(manifest, "step-17")
    assert isinstance(ranks, Folder)
    assert len(list(ranks.names())) == 4 * 4


@pytest.mark.parametrize("path", ["step-4", "step-18", "step-8/rank-4.csv", "step-8/rank-0.xls", "step-8/rank-0", "x"])
def test_what_is_not_read_is_not_there(manifest: Manifest, path: str) -> None:
    assert node(manifest, path) is None


def test_the_order_is_told_in_the_words_of_the_manifest(manifest: Manifest) -> None:
    found = json.loads(content(manifest, "order.json"))
    assert (found["seed"], found["dataset_samples"], found["global_batch"]) == (SEED, DATASET, 20)
    assert (found["cursor"], found["step"], found["last_step"], found["data_ranks"], found["ranks"]) == (
        110, 7, 17, 2, 4,
    )  # fmt: skip


def test_a_checkpoint_of_before_the_data_was_kept_has_no_such_folder(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    write_manifest(store, URI, [], HEADER, {"order": 1})
    assert data_folder(read_manifest(store, URI)) is None
