"""The packages that requirements.lock and the locks beside it pin, with the hashes of their files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK, CUDA_LOCK = ROOT / "requirements.lock", ROOT / "requirements-cuda.lock"
RAY_LOCK, ADAPTERS_LOCK = ROOT / "requirements-ray.lock", ROOT / "requirements-adapters.lock"
BESIDE = (CUDA_LOCK, RAY_LOCK, ADAPTERS_LOCK)  # installed where they are asked for; no package of theirs is in LOCK
TOOLS = tuple(
    sorted((ROOT / "supply_chain").glob("*.lock"))
)  # of environments of their own, which nothing here runs in
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s\\]+)\s*\\?$")
_HASH = re.compile(r"^    --hash=sha256:(?P<digest>[0-9a-f]{64})\s*\\?$")


@dataclass(frozen=True, slots=True)
class Pinned:
    name: str
    version: str
    hashes: tuple[str, ...]  # SHA-256 of each file that may be installed, hexadecimal

    @property
    def normal_name(self) -> str:
        return normal(self.name)


def normal(name: str) -> str:
    """As package indexes spell it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path = LOCK) -> list[Pinned]:
    """In the file's order. Raises `ValueError` for a line that pins nothing and hashes nothing."""
    packages: list[tuple[str, str, list[str]]] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if pin := _PIN.match(line):
            packages.append((pin["name"], pin["version"], []))
        elif (digest := _HASH.match(line)) and packages:
            packages[-1][2].append(digest["digest"])
        else:
            raise ValueError(f"{path.name}:{number}: {line!r} is neither `name==version` nor a hash; run `make lock`")
    return [Pinned(name, version, tuple(hashes)) for name, version, hashes in packages]
