"""requirements.lock pins all that the project needs, with everything that it brings along."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def pinned() -> dict[str, str]:
    lines = [
        line for line in (ROOT / "requirements.lock").read_text().splitlines() if line and not line.startswith("#")
    ]
    return {normal(name): version for name, version in (line.split("==") for line in lines)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


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
    missing = {name for name in reachable() - set(pinned()) if not belongs_to_a_torch_build(name)}
    assert missing == set()


def test_the_lock_names_no_place_and_no_build_of_torch() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "+cpu" not in text
    assert "://" not in text
    assert re.search(r"^torch==2\.13\.0$", text, re.M)
