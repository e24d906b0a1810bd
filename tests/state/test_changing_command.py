"""`elastic checkpoint plan` and `reshard` on a plain folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_core.domain import Layout
from elastic_core.errors import UserError
from elastic_core.state.format.checkpoint_format import read_manifest, read_tensors, verify, write_manifest, write_shard
from elastic_core.state.format.writing import plan_shards
from elastic_core.state.layout.layout import (
    AXES,
    DATA,
    PIPELINE,
    TENSOR,
    Mesh,
    Placement,
    Split,
    StateLayout,
    TensorMeta,
    layout_to_json,
)
from elastic_core.state.layout.resizing import resized
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store
from tests.state.builders import HEADER, URI, same_bits
from tests.state.random_layouts import slots
from tests.state.test_checkpoints_command import run, shown

STATE = {f"model/{i}.w": torch.arange(576.0).reshape(24, 24) * (i + 1) for i in range(4)}
METAS = {name: TensorMeta("float32", (24, 24)) for name in STATE}
S = 4 * 24 * 24 * 4


def laid(pipeline: int = 1, data: int = 1, tensor: int = 1) -> StateLayout:
    mesh = Mesh(AXES, (pipeline, data, tensor))
    cuts = (Split(TENSOR, 1), Split(DATA, 0))
    stage = {name: {PIPELINE: (i * pipeline // 4,)} if pipeline > 1 else {} for i, name in enumerate(STATE)}
    return StateLayout(mesh, {name: Placement(cuts, stage[name]) for name in STATE}, slots(mesh.world))


def write(store: CheckpointStore, layout: StateLayout | None, **own: torch.Tensor) -> None:
    shapes = {name: meta.shape for name, meta in METAS.items()}
    parts = plan_shards(layout, METAS) if layout else ({name: None for name in METAS},)
    infos = []
    for rank, boxes in enumerate(parts):
        tensors = {name: STATE[name][box.slices()] if box else STATE[name] for name, box in boxes.items()}
        tensors.update(own if rank == 0 else {})
        infos.append(write_shard(store, URI, rank, tensors, boxes if layout else None, shapes))
    write_manifest(store, URI, infos, HEADER, {"lr": 0.1}, layout)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path / "home"))
    return tmp_path / "store"


def planned(folder: Path, *arguments: str) -> Any:
    return shown("plan", URI, *arguments, "--store", folder)


def test_a_plan_says_what_moves_and_what_is_released(folder: Path) -> None:
    write(open_store(str(folder)), laid(data=4))
    plan = planned(folder, "data=3")
    assert plan["moved"] == plan["bound"] == {"host": 0, "device": S // 3, "store": 0}
    assert plan["bytes"] == {"local": S - S // 3, "host": S // 3, "network": 0, "store": 0}
    assert plan["proven"]
    assert plan["released"] in (["node-0/1"], ["node-0/2"])
    lost = planned(folder, "data=3", "--lost", "node-0/3")
    assert lost["moved"] == {"host": S // 4, "device": S // 2, "store": S // 4}
    fixed = planned(folder, "data=4", "--slots", "new:4", "--keep-map")
    assert fixed["bytes"]["network"] == S
    assert not fixed["proven"]
    assert planned(folder, "data=4", "--from-store")["bytes"]["store"] == S
    table = run("plan", URI, "data=3", "--store", folder).stdout
    assert "lower bound" in table
    assert "no other map moves less" in table
    assert "released        node-0/" in table


def test_a_plan_to_a_layout_in_a_file_takes_its_slots(folder: Path, tmp_path: Path) -> None:
    write(open_store(str(folder)), laid(tensor=2, pipeline=2))
    target = tmp_path / "b.json"
    target.write_text(json.dumps(layout_to_json(laid(tensor=4))))
    assert planned(folder, str(target))["moved"]["device"] == S // 2
    assert planned(folder, str(target), "--keep-map")["moved"]["device"] == 3 * S // 4
    target.write_text("{")
    assert isinstance(run("plan", URI, target, "--store", folder).exception, UserError)


def test_without_a_layout_in_the_manifest_every_rank_held_all(folder: Path) -> None:
    write(open_store(str(folder)), None)
    assert planned(folder, "data=3", "--slots", "local:3")["bytes"] == {
        "local": S, "host": 2 * S, "network": 0, "store": 0,
    }  # fmt: skip


def test_resharding_writes_the_files_of_the_other_layout(folder: Path, tmp_path: Path) -> None:
    write(open_store(str(folder)), laid(tensor=2, pipeline=2), **{"rng/torch/0": torch.arange(5)})
    out = tmp_path / "out"
    shown("reshard", URI, "tensor=3,pipeline=1,data=2", "--out", out, "--store", folder)
    store = open_store(str(out))
    assert verify(store, URI).num_files == 6
    manifest = read_manifest(store, URI)
    assert manifest.header.layout == Layout(data=2, tensor=3)
    assert manifest.scalars == {"lr": 0.1}
    found = read_tensors(store, manifest)
    assert all(same_bits(found[name], tensor) for name, tensor in STATE.items())
    assert torch.equal(found["rng/torch/0"], torch.arange(5))
    assert run("diff", folder / URI, out / URI).exit_code == 0
    again = run("reshard", URI, "tensor=3", "--out", out, "--store", folder)
    assert "holds" in str(again.exception)


def test_what_cannot_be_meant_is_refused(folder: Path) -> None:
    write(open_store(str(folder)), laid(data=2, pipeline=2))
    for arguments, words in (
        (("expert=2",), "axes"),
        (("pipeline=4", "--slots", "a:8"), "without the task's split"),
        (("data=8",), "needs 16 slots, not 4: name as many."),
        (("data=nope",), "'data=nope' is no layout: write axes and their ranks, at least 1 each, as data=2,tensor=4."),
        (("data=0",), "'data=0' is no layout"),
        (("data=2", "--lost", "node-0/9"), "none of the slots"),
        (("data=2", "--slots", "a"), "node:count"),
    ):
        error = run("plan", URI, *arguments, "--store", folder).exception
        assert isinstance(error, UserError)
        assert words in str(error)


def test_a_layout_at_other_sizes_keeps_its_cuts_and_merges_stages() -> None:
    layout = laid(pipeline=4, tensor=2)
    smaller = resized(layout, {"pipeline": 2, "data": 2}, slots(8))
    assert smaller.mesh == Mesh(AXES, (2, 2, 2))
    assert [smaller.placements[name].at for name in STATE] == [{PIPELINE: (i // 2,)} for i in range(4)]
    assert resized(layout, {"pipeline": 1}, slots(2)).placements["model/0.w"] == Placement(
        (Split(TENSOR, 1), Split(DATA, 0))
    )
    own = StateLayout(Mesh((DATA,), (2,)), {"rng/0": Placement(at={DATA: (0,)})}, slots(2))
    assert resized(own, {"data": 1}, slots(1)).placements == {}
    written = StateLayout(Mesh((DATA,), (2,)), {"w": Placement((Split(DATA, 0, (1, 2)),))}, slots(2))
    with pytest.raises(UserError, match="have written sizes"):
        resized(written, {"data": 3}, slots(3))
