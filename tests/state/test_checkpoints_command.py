"""`elastic checkpoint` on a plain folder and on S3, without any service."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from elastic_core.commands.checkpoints.checkpoint_commands import app
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.state.format.checkpoint_format import CheckpointHeader, checkpoint_uri, write_manifest, write_shard
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store
from tests.state.builders import same_bits
from tests.state.conftest import BUCKET, Server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "store"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def shown(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def checkpoint(store: CheckpointStore, step: int, lr: float = 0.1, **tensors: torch.Tensor) -> str:
    header = CheckpointHeader(job_id="digits", step=step, samples=step * 32, epoch=3)
    uri = checkpoint_uri(header, "abc")
    content = {"model/w": torch.arange(12.0).reshape(3, 4), "optim/w/step": torch.tensor(1.0 * step), **tensors}
    write_manifest(store, uri, [write_shard(store, uri, 0, content)], header, {"lr": lr})
    return uri


def test_a_folder_is_listed_by_step_with_what_is_wrong(folder: Path) -> None:
    store = open_store(str(folder))
    later, earlier = checkpoint(store, 20), checkpoint(store, 3)
    write_shard(store, "digits/lineage-0/step-0000000030-epoch-4-x", 0, {})
    flipped = bytearray(store.get(f"{later}/manifest.json"))
    flipped[50] ^= 1
    (folder / later / "manifest.json").write_bytes(flipped)
    first, second, third = shown("ls", "digits", "--store", folder)
    assert (first["uri"], first["header"]["step"], first["fault"]) == (earlier, 3, "")
    assert second["header"] is None
    assert "manifest.json" in second["fault"]
    assert third["fault"] == "incomplete"
    table = run("ls", "digits", "--store", folder).stdout
    assert earlier in table
    assert "incomplete" in table


def test_without_a_platform_the_listing_says_what_to_do(folder: Path) -> None:
    error = run("ls", "digits").exception
    assert isinstance(error, InfrastructureError)
    assert "--store" in str(error)


def test_a_checkpoint_is_found_by_folder_by_uri_and_by_address(
    folder: Path, rclone: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(folder))
    uri = checkpoint(store, 5)
    monkeypatch.setenv("ELASTIC_S3_ENDPOINT", rclone.endpoint)
    remote = open_store(f"s3://{BUCKET}/cli", endpoint=rclone.endpoint)
    checkpoint(remote, 5)
    for named in ((uri,), (folder / uri,), (uri, "--store", folder), (f"s3://{BUCKET}/cli/{uri}",)):
        assert shown("show", *named)["header"]["step"] == 5
    text = run("show", uri).stdout
    assert "model/w" in text
    assert "3x4" in text


def test_verify_tells_sound_from_corrupt_by_its_exit_code(folder: Path) -> None:
    store = open_store(str(folder))
    uri = checkpoint(store, 5)
    sound = shown("verify", uri)
    assert (sound["ok"], sound["num_tensors"]) == (True, 2)
    assert shown("verify", uri, "--sha256", sound["sha256"])["ok"]
    assert run("verify", uri, "--sha256", "0" * 64).exit_code == 1
    content = bytearray(store.get(f"{uri}/shard-0.safetensors"))
    content[-1] ^= 1
    store.put(f"{uri}/shard-0.safetensors", bytes(content))
    result = run("verify", uri, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] is False
    assert "of optim/w/step" in json.loads(result.stdout)["fault"]


def test_export_writes_the_weights_as_one_file(folder: Path, tmp_path: Path) -> None:
    uri = checkpoint(open_store(str(folder)), 5)
    out = tmp_path / "new" / "model.safetensors"
    assert shown("export", uri, "--out", out)["tensors"] == ["w"]
    assert load_file(out).keys() == {"w"}
    assert same_bits(load_file(out)["w"], torch.arange(12.0).reshape(3, 4))
    assert [path.name for path in out.parent.iterdir()] == ["model.safetensors"]
    error = run("export", uri, "--out", out, "--prefix", "nothing/").exception
    assert isinstance(error, UserError)


@pytest.mark.parametrize(
    ("change", "what", "num"),
    [
        ({"extra": torch.zeros(1)}, "only in the second", None),
        ({"model/w": torch.arange(12).reshape(3, 4)}, "type or shape: float32 [3, 4] and int64 [3, 4]", None),
        ({"model/w": torch.arange(12.0).reshape(3, 4).index_fill(0, torch.tensor(1), 9.5)}, "values", 4),
    ],
)
def test_diff_names_what_differs(folder: Path, change: dict[str, torch.Tensor], what: str, num: int | None) -> None:
    store = open_store(str(folder))
    one, other = checkpoint(store, 5), checkpoint(store, 6, **{"optim/w/step": torch.tensor(5.0), **change})
    result = run("diff", one, other, "--json")
    assert result.exit_code == 1
    (different,) = json.loads(result.stdout)["tensors"]
    assert different["what"] == what
    assert different["num_different"] == num
    assert run("diff", one, other).exit_code == 1


def test_diff_of_equal_state_is_the_same_whoever_wrote_it(folder: Path) -> None:
    store = open_store(str(folder))
    one, other = checkpoint(store, 5), checkpoint(store, 6, **{"optim/w/step": torch.tensor(5.0)})
    found = shown("diff", one, other)
    assert found["same"]
    assert found["values"]["header.step"] == [5, 6]
    assert found["num_equal"] == 2
    changed = checkpoint(store, 7, lr=0.2, **{"optim/w/step": torch.tensor(5.0)})
    result = run("diff", one, changed, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["values"]["scalars.lr"] == [0.1, 0.2]


def test_diff_counts_a_number_against_nan(folder: Path) -> None:
    store = open_store(str(folder))
    one = checkpoint(store, 5, x=torch.tensor([1.0, float("nan")]))
    other = checkpoint(store, 6, x=torch.tensor([float("nan"), float("nan")]), **{"optim/w/step": torch.tensor(5.0)})
    (different,) = json.loads(run("diff", one, other, "--json").stdout)["tensors"]
    assert (different["num_different"], different["max_abs"]) == (1, None)


@pytest.mark.parametrize("command", [lambda uri: ("show", uri), lambda uri: ("verify", uri)])
def test_a_path_out_of_the_store_is_refused(folder: Path, command: Callable[[str], tuple[str, str]]) -> None:
    error = run(*command("../outside")).exception
    assert isinstance(error, UserError)
    assert "is not a key" in str(error)
