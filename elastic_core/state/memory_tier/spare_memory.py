"""How much memory is left for the memory tier: of the host, and of the control group where a container has less.

Whatever is over a group's limit ends a process in it, though the host has memory left. Files in the page cache give
way, and count as free. Linux's interfaces: https://docs.kernel.org/admin-guide/cgroup-v2.html (`memory.max`), and those
of version 1 (`memory.limit_in_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

RESERVE = 8  # the last 1/8 of what there is in all is never used


class _Files(NamedTuple):
    limit: str
    used: str
    page_cache: tuple[str, str]  # in memory.stat


_V2 = _Files("memory.max", "memory.current", ("active_file", "inactive_file"))
_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))


def spare(proc: Path = Path("/proc"), mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that may still be used; below 0 where the reserve is used already."""
    sizes = {name.rstrip(":"): int(size) << 10 for name, size in _numbers(proc / "meminfo").items()}
    return min([sizes["MemAvailable"] - sizes["MemTotal"] // RESERVE, *_of_groups(proc, mounted)])


def _of_groups(proc: Path, mounted: Path) -> Iterator[int]:
    """Of each group that this process is in, and of those around it: a limit holds for all below it."""
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, files = (mounted / "memory", _V1) if controllers else (mounted, _V2)
        group = root / name.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root):
                break
            with suppress(OSError, ValueError):  # none here, as in a container that sees its own alone, or no limit
                limit, used = (int((folder / file).read_text()) for file in (files.limit, files.used))
                known = _numbers(folder / "memory.stat")
                yield limit - limit // RESERVE - used + sum(known.get(kind, 0) for kind in files.page_cache)


def _numbers(path: Path) -> dict[str, int]:
    return {words[0]: int(words[1]) for line in path.read_text().splitlines() if len(words := line.split()) > 1}
