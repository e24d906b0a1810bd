"""The lowest limit around a process says how much memory is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.state.memory_tier.spare_memory import spare

GIB = 1 << 30


class Machine:
    """Files of Linux as the kernel writes them, of a host with 32 GiB, of which 24 are free: 20 to spare."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.mounted = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        meminfo = f"MemTotal:  {32 << 20} kB\nMemFree:  1 kB\nMemAvailable:  {24 << 20} kB\nHugePages_Total: 0\n"
        (self.proc / "meminfo").write_text(meminfo)
        self.is_in("0::/")

    def is_in(self, *groups: str) -> None:
        (self.proc / "self" / "cgroup").write_text("\n".join(groups) + "\n")

    def v2(self, group: str, limit: str, used: int, page_cache: int = 0) -> None:
        stat = f"anon 5\nactive_file {page_cache}\ninactive_file 0\n"
        self._write(group, {"memory.max": limit, "memory.current": str(used), "memory.stat": stat})

    def v1(self, group: str, limit: int, used: int, page_cache: int = 0) -> None:
        stat = f"inactive_file 7\ntotal_active_file 0\ntotal_inactive_file {page_cache}\n"
        of_group = {"memory.limit_in_bytes": str(limit), "memory.usage_in_bytes": str(used), "memory.stat": stat}
        self._write(f"memory/{group}", of_group)

    def _write(self, group: str, files: dict[str, str]) -> None:
        folder = self.mounted / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")

    def spare(self) -> float:
        return spare(self.proc, self.mounted) / GIB


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_a_limit_it_is_the_hosts_but_for_an_eighth(machine: Machine) -> None:
    assert machine.spare() == 20
    machine.v2("", "max", GIB)
    assert machine.spare() == 20


def test_a_containers_lower_limit_holds_and_what_the_page_cache_has_of_it_is_free(machine: Machine) -> None:
    machine.v2("", str(8 * GIB), 5 * GIB, page_cache=2 * GIB)
    assert machine.spare() == 4


def test_of_nested_groups_the_tightest_holds(machine: Machine) -> None:
    machine.is_in("0::/system.slice/ray.service")
    machine.v2("system.slice", str(8 * GIB), 6 * GIB)
    machine.v2("system.slice/ray.service", str(16 * GIB), GIB)
    assert machine.spare() == 1


def test_of_version_1_too_also_where_a_container_sees_its_own_group_as_the_root(machine: Machine) -> None:
    machine.is_in("4:memory:/docker/1f", "3:cpuset:/", "0::/")
    machine.v1("", 8 * GIB, 4 * GIB, page_cache=GIB)
    assert machine.spare() == 4
    machine.v1("", 9223372036854771712, 4 * GIB)
    assert machine.spare() == 20


def test_this_machine_says_it() -> None:
    assert isinstance(spare(), int)
