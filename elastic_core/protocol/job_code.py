"""What a job's results say of its code, under the name `code`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_core.domain import from_json, to_json
from elastic_core.text import plural

CODE = "code"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedCode:
    """Which code every segment of the job runs; `unpinned` says why none is pinned."""

    sha256: str = ""
    packages: tuple[str, ...] = ()
    files: int = 0
    size_bytes: int = 0
    unpinned: str = ""

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_json(self)
        return {name: value for name, value in plain.items() if value}

    @property
    def words(self) -> str:
        if not self.sha256:
            return f"not pinned: {self.unpinned}" if self.unpinned else ""
        size = f"{self.size_bytes / 2**20:.1f} MiB"
        return f"{', '.join(self.packages)} ({plural(self.files, 'file')}, {size}), pinned as {self.sha256[:12]}"


def code_of(results: Mapping[str, Any]) -> PinnedCode:
    """Of a job's results; empty for one whose code was never pinned."""
    return from_json(PinnedCode, results.get(CODE) or {})
