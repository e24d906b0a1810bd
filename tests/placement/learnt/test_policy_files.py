"""A trained policy as a file: what comes back, and what is refused, in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from elastic_core.errors import UserError
from elastic_core.placement.learnt import policy_files
from elastic_core.placement.learnt.layer_policy import LayerPolicy, features
from elastic_core.placement.learnt.policy_files import FORMAT
from tests.placement.builders import small


def test_a_policy_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    policy, path = LayerPolicy(), tmp_path / "policy.safetensors"
    policy_files.save(policy, path, "a test")
    loaded = policy_files.load(path)
    given = features(small(1, layers=4, types=3))
    assert loaded.trained_on == "a test"
    assert torch.equal(loaded.policy.of(given)[0], policy.of(given)[0])


def test_the_packages_own_is_read_once_and_is_small() -> None:
    assert policy_files.shipped() is policy_files.shipped()
    assert policy_files.SHIPPED.stat().st_size < 100_000


def test_what_is_no_safetensors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(b"no tensors at all")
    with pytest.raises(UserError, match=r"policy\.safetensors cannot be read as a policy.*placement train"):
        policy_files.load(path)
    with pytest.raises(UserError, match="cannot be read as a policy"):
        policy_files.load(tmp_path / "absent")


def test_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    save_file(LayerPolicy().state_dict(), path, metadata={"format": "elastic-placement-policy-0"})
    with pytest.raises(UserError, match=f"'elastic-placement-policy-0'; a placement policy has '{FORMAT}'"):
        policy_files.load(path)


@pytest.mark.parametrize("wrong", ["shape", "absent", "more"])
def test_tensors_that_do_not_fit_are_refused_by_name(tmp_path: Path, wrong: str) -> None:
    path, tensors = tmp_path / "policy.safetensors", LayerPolicy().state_dict()
    if wrong == "more":
        tensors["score.9.bias"] = torch.zeros(2)
    elif wrong == "absent":
        del tensors["score.2.bias"]
    else:
        tensors["score.2.bias"] = torch.zeros(9)
    save_file(tensors, path, metadata={"format": FORMAT})
    with pytest.raises(UserError, match=r"the tensor 'score\.\d\.bias' has the shape .*; this version has "):
        policy_files.load(path)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path, tensors = tmp_path / "policy.safetensors", LayerPolicy().state_dict()
    tensors["score.2.bias"] = torch.full_like(tensors["score.2.bias"], torch.nan)
    save_file(tensors, path, metadata={"format": FORMAT})
    with pytest.raises(UserError, match=r"'score\.2\.bias' holds values that are not finite"):
        policy_files.load(path)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be written to .*folder that is there"):
        policy_files.save(LayerPolicy(), tmp_path / "absent" / "policy.safetensors", "a test")
