"""What a node keeps: within its bound, the newest first, nothing for ever."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from elastic_core.state.memory_tier.cache import Memory
from elastic_core.state.memory_tier.cache_client import new_file, seal, write_all

OLD, NEW, NEXT = (f"job/lineage-0/step-{step:010d}-epoch-1-aa" for step in (10, 20, 30))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(clock: Clock) -> Iterator[Memory]:
    memory = Memory(100, clock, lambda: 1000)
    yield memory
    memory.only([])
    assert memory.used == 0


def keep(memory: Memory, key: str, data: bytes, job: str = "job", own: bool = True) -> bool:
    if not memory.reserve(job, key.rpartition("/")[0], len(data)):
        return False
    fd = new_file()
    write_all(fd, data)
    seal(fd)
    memory.keep(job, key, fd, own)
    return True


def kept(memory: Memory, key: str, job: str = "job") -> bytes | None:
    with memory.opened(job, key) as fd:
        return None if fd is None else os.pread(fd, 1000, 0)


def test_a_job_finds_what_is_its_own_only(memory: Memory) -> None:
    assert keep(memory, f"{NEW}/shard-0", b"mine")
    assert kept(memory, f"{NEW}/shard-0") == b"mine"
    assert kept(memory, f"{NEW}/shard-0", job="another") is None
    assert memory.listed("another", NEW) == {}


def test_what_was_written_here_is_told_from_copies(memory: Memory) -> None:
    keep(memory, f"{NEW}/shard-0", b"own")
    keep(memory, f"{NEW}/shard-1", b"copy", own=False)
    assert memory.listed("job", NEW) == {f"{NEW}/shard-0": 3, f"{NEW}/shard-1": 4}
    assert memory.listed("job", NEW, own=True) == {f"{NEW}/shard-0": 3}


def test_a_commit_drops_what_is_older_and_of_another_lineage_but_not_what_is_being_written(memory: Memory) -> None:
    other = NEXT.replace("lineage-0", "lineage-1")
    for uri in (OLD, NEW, NEXT, other):
        assert keep(memory, f"{uri}/shard-0", b"x" * 10)
    memory.committed("job", NEW)
    assert [kept(memory, f"{uri}/shard-0") is not None for uri in (OLD, NEW, NEXT, other)] == [False, True, True, False]
    assert (memory.used, memory.newest("job")) == (20, NEW)


def test_the_bound_holds_and_a_jobs_older_checkpoints_make_room(memory: Memory) -> None:
    assert keep(memory, "another/lineage-0/step-0000000001-epoch-1-aa/shard-0", b"x" * 30, job="another")
    assert keep(memory, f"{OLD}/shard-0", b"x" * 40)
    assert keep(memory, f"{NEW}/shard-0", b"y" * 40)
    assert kept(memory, f"{OLD}/shard-0") is None
    assert memory.used == 70
    assert not keep(memory, f"{NEW}/shard-1", b"y" * 31)  # neither its own nor another job's makes room
    assert kept(memory, f"{NEW}/shard-0") == b"y" * 40
    assert keep(memory, f"{NEW}/shard-1", b"y" * 30)
    assert memory.used == 100


def test_the_hosts_last_memory_is_not_taken(clock: Clock) -> None:
    memory = Memory(100, clock, lambda: 5)
    assert not keep(memory, f"{NEW}/shard-0", b"x" * 6)
    assert memory.reserve("job", NEW, 3, ahead=100) == 5


def test_room_ahead_is_what_is_free_and_nothing_is_dropped_for_it(memory: Memory) -> None:
    assert keep(memory, f"{OLD}/shard-0", b"x" * 60)
    assert memory.reserve("job", NEW, 10, ahead=1000) == 40
    assert kept(memory, f"{OLD}/shard-0") is not None
    memory.release(40)
    assert memory.used == 60


def test_a_file_that_could_still_change_is_not_kept(memory: Memory) -> None:
    fd = new_file()
    write_all(fd, b"abc")
    with pytest.raises(ValueError, match="not sealed"):
        memory.keep("job", f"{NEW}/shard-0", fd, own=True)
    os.close(fd)


def test_who_reads_a_file_keeps_it_while_it_is_dropped(memory: Memory) -> None:
    keep(memory, f"{NEW}/shard-0", b"still there")
    with memory.opened("job", f"{NEW}/shard-0") as fd:
        memory.drop("job")
        assert os.pread(fd, 100, 0) == b"still there"
    assert memory.empty


@pytest.mark.parametrize(
    ("speak", "stays"),
    [
        (lambda memory: None, False),
        (lambda memory: memory.only(["job", "another"]), True),
        (lambda memory: memory.committed("job", NEW), True),
        (lambda memory: kept(memory, f"{NEW}/shard-0"), True),
    ],
    ids=["nobody speaks of it", "its job is active", "it commits", "it is read"],
)
def test_what_nobody_speaks_of_for_long_is_dropped(
    memory: Memory, clock: Clock, speak: Callable[[Memory], object], stays: bool
) -> None:
    keep(memory, f"{NEW}/shard-0", b"x")
    clock.now = 50.0
    speak(memory)
    clock.now = 100.0
    memory.expire(60.0)
    assert (kept(memory, f"{NEW}/shard-0") is not None) is stays
