"""`elastic://` as fsspec and pandas see it: on a folder and on S3, read-only, without a way out."""

from __future__ import annotations

import errno
import json
import secrets
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load

from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.state.format.checkpoint_format import write_shard
from elastic_core.state.order.sample_order import batch_indices
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store
from elastic_core.view.filesystem import ElasticFileSystem
from tests.state.conftest import BUCKET, Server
from tests.view.builders import DATASET, SEED, flip_last_byte, tensors, write_job

HERE = "digits/checkpoints/lineage-0/step-0000000007-epoch-3-abc"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the entry point does once the project is installed from these files (tests/view/test_installed.py)."""
    fsspec.register_implementation("elastic", ElasticFileSystem, clobber=True)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    monkeypatch.setenv("ELASTIC_STORE", str(tmp_path / "store"))
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def files(store: CheckpointStore) -> ElasticFileSystem:
    write_job(store, step=5)
    write_job(store, step=7)
    write_job(store, job="other")
    return fsspec.filesystem("elastic")


def test_the_tree_shows_jobs_checkpoints_and_what_is_in_them(files: ElasticFileSystem) -> None:
    assert files.ls("elastic://", detail=False) == ["digits", "other"]
    assert files.ls("digits", detail=False) == ["digits/checkpoints"]
    assert files.ls("digits/checkpoints", detail=False) == ["digits/checkpoints/lineage-0"]
    assert [path.rpartition("/")[2] for path in files.ls("digits/checkpoints/lineage-0/", detail=False)] == [
        "step-0000000005-epoch-3-abc",
        "step-0000000007-epoch-3-abc",
    ]
    assert {path.rpartition("/")[2] for path in files.ls(HERE, detail=False)} == {
        "manifest.json", "shard-0.safetensors", "shard-1.safetensors", "shard-2.safetensors", "shard-3.safetensors",
        "header.json", "scalars.json", "tensors", "layouts", "data",
    }  # fmt: skip


def test_every_file_of_a_listing_has_the_size_that_reading_it_gives(files: ElasticFileSystem) -> None:
    places = (f"{HERE}/{place}" for place in ("tensors", "layouts", "data/step-0000000009"))
    found = {path: info for place in places for path, info in files.find(place, detail=True).items()}
    found |= {info["name"]: info for info in files.ls(HERE) if info["type"] == "file"}
    assert len(found) > 40
    for path in found:
        content = files.cat_file(path)
        assert len(content) == found[path]["size"] == files.info(path)["size"], path
        with files.open(path) as file:
            assert file.read() == content
            file.seek(-1, 2)
            assert file.read() == content[-1:]


def test_plain_fsspec_opens_a_slice_of_a_tensor(files: ElasticFileSystem) -> None:
    weight = tensors()["model/blocks.0.weight"]
    with fsspec.open("elastic://digits/checkpoints/newest/tensors/model/blocks.0.weight[2:5,:3].npy") as file:
        assert np.array_equal(np.load(file), weight[2:5, :3].numpy())
    raw = files.cat(f"{HERE}/tensors/model/blocks.0.weight[1].raw")
    assert np.array_equal(np.frombuffer(raw, "<f4"), weight[1].numpy())
    assert files.cat_file(f"{HERE}/tensors/model/bias.raw", 2, -2) == tensors()["model/bias"][1:-1].view(torch.uint8).numpy().tobytes()  # fmt: skip  # noqa: E501


def test_stored_files_are_there_byte_for_byte(files: ElasticFileSystem, store: CheckpointStore) -> None:
    name = "shard-1.safetensors"
    content = store.get(f"digits/lineage-0/step-0000000007-epoch-3-abc/{name}")
    assert files.cat_file(f"{HERE}/{name}") == content
    assert load(files.cat_file(f"{HERE}/{name}")).keys() == load(content).keys()
    assert json.loads(files.cat_file(f"{HERE}/header.json"))["samples"] == 110
    assert json.loads(files.cat_file(f"{HERE}/scalars.json"))["order"] == 1


def test_a_rank_of_the_written_or_of_any_other_layout_has_its_boxes(files: ElasticFileSystem) -> None:
    weight = tensors()["model/blocks.0.weight"]

    def parts(layout: str, ranks: int) -> list[np.ndarray]:
        path = f"{HERE}/layouts/{layout}/rank-{{}}/model/blocks.0.weight.npy"
        return [np.load(files.open(path.format(rank))) for rank in range(ranks)]

    written = parts("written", 4)  # tensor cuts first, then data cuts what is left
    assert np.array_equal(np.concatenate([written[0], written[2], written[1], written[3]]), weight.numpy())
    assert np.array_equal(np.concatenate(parts("data=1,tensor=3", 3)), weight.numpy())
    assert np.array_equal(np.load(files.open(f"{HERE}/layouts/data=1,tensor=3/rank-2/model/blocks.0.weight[-1].npy")), weight[-1].numpy())  # fmt: skip  # noqa: E501
    table = pd.DataFrame(json.loads(files.cat_file(f"{HERE}/layouts/written/rank-3/tensors.json"))).set_index("name")
    assert table.loc["model/blocks.0.weight", "start"] == [6, 0]
    assert table.loc["model/blocks.0.weight", "of"] == [8, 6]
    assert json.loads(files.cat_file(f"{HERE}/layouts/written/layout.json"))["mesh"]["sizes"] == [1, 2, 2]
    with pytest.raises(UserError, match=r"axes .* not \['rows'\]"):
        files.ls(f"{HERE}/layouts/rows=3")


def test_pandas_reads_the_partition_of_a_rank_by_its_address(files: ElasticFileSystem) -> None:
    address = f"elastic://{HERE}/data/step-0000000008/rank-0"
    wanted = batch_indices(SEED, DATASET, 110, 10).tolist()
    assert pd.read_csv(f"{address}.csv")["index"].tolist() == wanted
    assert pd.read_json(f"{address}.json")["index"].tolist() == wanted
    assert pd.read_parquet(f"{address}.parquet")["index"].tolist() == wanted


def test_the_same_tree_stands_over_s3(rclone: Server) -> None:
    place = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    write_job(open_store(place, endpoint=rclone.endpoint))
    options = {"store": place, "endpoint": rclone.endpoint}
    assert fsspec.filesystem("elastic", **options).ls("", detail=False) == ["digits"]
    address = f"elastic://{HERE}/tensors/model/bias[:2].npy"
    with fsspec.open(address, **options) as file:
        assert np.array_equal(np.load(file), tensors()["model/bias"][:2].float().numpy())
    table = pd.read_csv(f"elastic://{HERE}/data/step-8/rank-2.csv", storage_options=options)
    assert table["sample"].tolist() == list(range(120, 130))


def test_incomplete_checkpoints_are_not_shown_and_corrupt_ones_say_so(
    files: ElasticFileSystem, store: CheckpointStore, tmp_path: Path
) -> None:
    write_shard(store, "digits/lineage-0/step-0000000009-epoch-4-x", 0, {"w": torch.ones(2)})
    assert len(files.ls("digits/checkpoints/lineage-0")) == 2
    assert files.info("digits/checkpoints/newest/header.json")
    shard = tmp_path / "store" / "digits/lineage-0/step-0000000007-epoch-3-abc/shard-0.safetensors"
    flip_last_byte(shard)
    with pytest.raises(CorruptCheckpoint, match=r"shard-0.safetensors: .* has CRC-32C"):
        [files.cat_file(path) for path in files.find(f"{HERE}/tensors")]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("digit", "elastic:// holds no digit. Did you mean digits?"),
        ("digits/checkpoint", "Did you mean checkpoints"),
        ("nobody/checkpoints", "nobody holds no checkpoints"),
        ("digits/checkpoints/lineage-1", "It holds lineage-0."),
        (".git", "It holds digits, other."),
        (f"{HERE}/tensors/model/bia.npy", "Did you mean bias.npy?"),
        (f"{HERE}/layouts/written/rank-4", "Did you mean rank-"),
        (f"{HERE}/header.json/x", "header.json is a file: there is no x below it"),
    ],
)
def test_what_is_missing_is_told_with_what_is_there(files: ElasticFileSystem, path: str, says: str) -> None:
    for look in (files.info, files.ls, files.open, files.cat_file):
        with pytest.raises(FileNotFoundError) as caught:
            look(path)
        assert says in str(caught.value)
    assert not files.exists(path)


@pytest.mark.parametrize(
    "path", ["../x", "digits/../../etc/passwd", "digits/./checkpoints", "digits//checkpoints", "a\\b", "digits/\x00"]
)
def test_no_path_leads_out(files: ElasticFileSystem, path: str) -> None:
    for look in (files.info, files.ls, files.open, files.cat_file):
        with pytest.raises(UserError, match=r"is no path of elastic://"):
            look(path)


def test_a_link_out_of_the_store_is_refused(files: ElasticFileSystem, tmp_path: Path) -> None:
    (tmp_path / "store" / "digits" / "lineage-8").symlink_to("/etc")
    with pytest.raises(UserError, match="leads out of the store"):
        files.ls("digits/checkpoints/lineage-8")


CHANGES: list[Callable[[ElasticFileSystem], object]] = [
    lambda files: files.open(f"{HERE}/x", "wb"),
    lambda files: files.open(f"{HERE}/header.json", "ab"),
    lambda files: files.open(f"{HERE}/header.json", "w"),
    lambda files: files.open(f"{HERE}/header.json", "r+b"),
    lambda files: files.pipe_file(f"{HERE}/x", b""),
    lambda files: files.pipe({f"{HERE}/x": b""}),
    lambda files: files.rm(HERE, recursive=True),
    lambda files: files.rm_file(f"{HERE}/header.json"),
    lambda files: files.delete(f"{HERE}/header.json"),
    lambda files: files.mkdir("x"),
    lambda files: files.makedirs("x/y"),
    lambda files: files.mkdirs("x/y"),
    lambda files: files.rmdir("digits"),
    lambda files: files.touch("x"),
    lambda files: files.cp_file(f"{HERE}/header.json", "x"),
    lambda files: files.copy(f"{HERE}/header.json", "x"),
    lambda files: files.mv("digits", "x"),
    lambda files: files.rename("digits", "x"),
    lambda files: files.put_file(__file__, "x"),
    lambda files: files.put(__file__, "x"),
    lambda files: files.write_text("x", "y"),
    lambda _: pd.DataFrame({"a": [1]}).to_csv("elastic://digits/x.csv"),
]


def test_nothing_can_be_changed(files: ElasticFileSystem, tmp_path: Path) -> None:
    def all_files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = all_files()
    for change in CHANGES:
        with pytest.raises(OSError, match=r"elastic:// is read-only|Read-only") as caught:
            change(files)
        assert caught.value.errno == errno.EROFS
    assert all_files() == before


def test_a_folder_is_not_opened_as_a_file(files: ElasticFileSystem) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder: it holds"):
        files.open(HERE)
