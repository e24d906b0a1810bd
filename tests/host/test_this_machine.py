from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.host import this_machine
from elastic_core.settings import Settings


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("NVIDIA", "cuda"),
    ],
)
def test_a_type_is_the_model_in_the_devices_name(name: str, want: str) -> None:
    assert this_machine.device_type(name) == want


def test_a_machine_with_devices_has_a_slot_for_each() -> None:
    (node,) = this_machine.this_machine(["NVIDIA H200"] * 8).nodes
    assert (node.type, node.slots) == ("h200", 8)


def test_a_machine_without_devices_has_a_slot_for_each_core() -> None:
    (node,) = this_machine.this_machine([]).nodes
    assert (node.type, node.slots) == ("cpu", this_machine.cores())


def test_devices_of_several_types_are_refused_with_a_way_out() -> None:
    with pytest.raises(UserError, match=r"several types.*'t4': 1.*CUDA_VISIBLE_DEVICES.*ELASTIC_CLUSTER"):
        this_machine.this_machine(["Tesla T4", "NVIDIA H200"])


@pytest.mark.parametrize(
    ("variable", "want"),
    [(None, ["a", "b", "c"]), ("", []), ("2,0", ["c", "a"]), ("1,9,0", ["b"]), ("-1", []), ("GPU-12ab", ["a"])],
)
def test_hidden_devices_are_not_counted(variable: str | None, want: list[str]) -> None:
    assert this_machine.visible(["a", "b", "c"], variable) == want


def test_a_cluster_file_goes_before_what_the_machine_has(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text('{"nodes": [{"name": "a", "type": "cpu", "slots": 2}, {"name": "b", "type": "cpu", "slots": 2}]}')
    assert [node.slots for node in this_machine.discover(Settings(cluster=path)).nodes] == [2, 2]


@pytest.mark.parametrize("text", ["", '{"nodes": []}', '{"nodes": [{"name": "a", "type": "cpu", "slot": 2}]}'])
def test_a_bad_cluster_file_is_named_with_an_example(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"(?s)cluster\.json cannot be used.*It looks like"):
        this_machine.discover(Settings(cluster=path))


def test_a_missing_cluster_file_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        this_machine.discover(Settings(cluster=tmp_path / "none.json"))
