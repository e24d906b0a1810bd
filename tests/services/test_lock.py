"""requirements.lock pins all that the project needs, with everything that it brings along."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from supply_chain.lock_files import CUDA_LOCK, LOCK, normal, pinned

ROOT = Path(__file__).parents[2]
TOOLS_LOCK = ROOT / "supply_chain" / "tools.lock"


def reachable() -> set[str]:
    """Every distribution that pyproject.toml leads to, in the environment that this test runs in."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["dev"]]
    todo = [Requirement(text) for text in [*wanted, *project["build-system"]["requires"]]]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement = todo.pop()
        key = (normal(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            further = [Requirement(text) for text in requires(requirement.name) or []]
        except PackageNotFoundError:
            continue  # not installed: reported by its name being absent from the lock
        extras = requirement.extras or {""}
        todo += [r for r in further if r.marker is None or any(r.marker.evaluate({"extra": extra}) for extra in extras)]
    return {name for name, _ in seen}


def belongs_to_a_torch_build(name: str) -> bool:
    """NVIDIA's libraries, which PyPI's build of torch pins by itself and a CPU build has not got."""
    return name.startswith(("nvidia-", "cuda-")) or name == "triton"


def test_the_lock_pins_all_that_is_needed() -> None:
    missing = {
        name
        for name in reachable() - {package.normal_name for package in pinned()}
        if not belongs_to_a_torch_build(name)
    }
    assert missing == set()


def test_the_lock_names_no_place_and_no_build_of_torch() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "+cpu" not in text
    assert "://" not in text
    assert re.search(r"^torch==2\.13\.0 \\$", text, re.M)


@pytest.mark.parametrize("path", [LOCK, CUDA_LOCK, TOOLS_LOCK], ids=lambda path: path.name)
def test_every_package_is_pinned_once_with_hashes(path: Path) -> None:
    """As pip needs it in hash-checking mode, where one package without a hash is refused."""
    packages = pinned(path)
    assert len({package.normal_name for package in packages}) == len(packages) > 10
    assert [package.name for package in packages if not package.hashes] == []


def test_what_setup_installs_is_checked_and_leaves_nothing_to_resolve() -> None:
    installs = re.findall(r"pip install (.*)$", (ROOT / "Makefile").read_text(), re.M)
    from_locks = [line for line in installs if "-r " in line]
    assert len(from_locks) >= 4  # the platform, its CUDA build, the site, the tools
    assert [line for line in from_locks if "--require-hashes --no-deps" not in line] == []


def test_the_libraries_of_torch_for_cuda_are_no_others_than_those() -> None:
    names = {package.normal_name for package in pinned(CUDA_LOCK)}
    assert [name for name in names if not belongs_to_a_torch_build(name)] == []
    assert names & {package.normal_name for package in pinned(LOCK)} == set()


def test_a_line_that_pins_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "requirements.lock"
    path.write_text("httpx==0.28.1 \\\n    --hash=sha256:1234\n")
    with pytest.raises(ValueError, match=r"requirements\.lock:2: .* is neither `name==version` nor a hash"):
        pinned(path)
