"""The exact exchange: a sum over ranks that does not depend on where in its bucket an element lies."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elastic_core.comm.algorithms import create
from elastic_core.comm.allreduce import _GATHER_BELOW, OrderedAllReduce
from elastic_core.comm.hooked import slower_link
from elastic_core.errors import UserError
from elastic_core.host.rundir import RunDir
from elastic_core.train.parallel.group import Group
from tests.comm.ranks import run
from tests.train import forked
from tests.train.lease.waiting import until

SIZES = (1, 2, 5, 1000, _GATHER_BELOW - 1, _GATHER_BELOW, _GATHER_BELOW + 1, 50_003)


def values(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn(size, generator=generator) * 10.0 ** torch.randint(-6, 6, (size,), generator=generator)).to(
        dtype
    )


def sums(folder: str, rank: int, world: int) -> int:
    group = Group.form(RunDir(Path(folder)), rank, world, torch.device("cpu"))
    algorithm = OrderedAllReduce()
    for dtype in (torch.float32, torch.bfloat16):
        for size in SIZES:
            whole = algorithm.reduce(values(rank, size, dtype))
            want = values(0, size, dtype)
            for other in range(1, world):
                want += values(other, size, dtype)
            assert torch.equal(whole, want), (dtype, size)
    group.close()
    return 0


def every_layout(folder: str, rank: int, world: int) -> int:
    """The same elements, shifted, cut into two buckets, and as one: the same bits."""
    group = Group.form(RunDir(Path(folder)), rank, world, torch.device("cpu"))
    algorithm, mine = OrderedAllReduce(), values(rank, 40_000, torch.float32)
    whole = algorithm.reduce(mine.clone())
    for cut in (1, 3333, 20_001, 39_999):
        parts = [algorithm.reduce(mine[:cut].clone()), algorithm.reduce(mine[cut:].clone())]
        assert torch.equal(torch.cat(parts), whole), cut
    ring = mine.clone()
    dist.all_reduce(ring)
    torch.testing.assert_close(ring, whole, rtol=1e-4, atol=1e-2)
    group.close()
    return 0


def several_at_once(folder: str, rank: int, world: int) -> int:
    """Rank 1 comes to its exchanges only when rank 0 has two under way. The model outlives its group, while a thread of
    the backend may still be in Python: without what `group._closed` is for, one run in three never ended."""
    group, two_begun = Group.form(RunDir(Path(folder)), rank, world, torch.device("cpu")), Path(folder) / "two"
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(300, 300) for _ in range(4))), bucket_cap_mb=0.1)
    algorithm, begun = OrderedAllReduce(), []
    algorithm.attach(model)
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(rank))
    for _ in range(2):  # DDP lays its buckets out anew at the second, which ranks agree on
        model(x).sum().backward()
    begin = algorithm.begin

    def counted(buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor] | None:
        begun.append(begin(buffer))
        if len(begun) == 2:
            two_begun.touch()
        return begun[-1]

    if rank == 0:
        algorithm.begin = counted
    else:
        until(two_begun.exists, 20.0)
    model(x).sum().backward()
    algorithm.close()
    group.close()
    return 0


def test_two_ranks_have_several_buckets_under_way_at_once(tmp_path):
    processes = [forked.start(several_at_once, str(tmp_path), r, 2, log=tmp_path / f"log{r}") for r in range(2)]
    assert forked.join(processes, 60.0) == [0, 0], [path.read_text() for path in sorted(tmp_path.glob("log*"))]


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("check", [sums, every_layout])
def test_sum_runs_in_the_order_of_ranks_for_every_element(tmp_path, world, check):
    processes = [forked.start(check, str(tmp_path), r, world, log=tmp_path / f"log{r}") for r in range(world)]
    assert forked.join(processes) == [0] * world, [path.read_text() for path in tmp_path.glob("log*")]


def test_unknown_algorithm_names_those_that_exist():
    with pytest.raises(UserError, match="'ring'; allowed: allreduce"):
        create("ring", torch.device("cpu"))


def on_a_slower_link(rank: int, world: int) -> None:
    """Ranks that come one after another, and several buckets: the least wait is the link's, once a step."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(400, 400), nn.Linear(400, 400)), bucket_cap_mb=0.5)
    algorithm, passed = OrderedAllReduce(), []
    algorithm.attach(model)

    def linger() -> None:
        passed.append(rank)
        time.sleep(0.3)

    with slower_link(linger):
        for _ in range(3):
            time.sleep(0.2 * rank)
            model(torch.ones(1, 400)).sum().backward()
            least = torch.tensor(algorithm.take_wait_seconds())
            dist.all_reduce(least, dist.ReduceOp.MIN)
            assert least >= 0.3
    model(torch.ones(1, 400)).sum().backward()
    assert len(passed) == 3
    algorithm.close()


@pytest.mark.parametrize("world", [2, 3])
def test_a_slower_link_is_waited_for_by_every_rank(world: int, tmp_path: Path) -> None:
    run(on_a_slower_link, tmp_path, world)


def a_large_bucket_before_a_small_one(rank: int, world: int) -> None:
    """Two ranks sum both at once, and the small one is done first."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 400), nn.Linear(400, 400)), bucket_cap_mb=0.1)
    algorithm = _LargeTakeLong()
    algorithm.attach(model)
    for _ in range(3):
        model(torch.ones(1, 10)).sum().backward()
        assert algorithm.take_wait_seconds() >= 0.25
    assert algorithm.begun > 3, "there were no two buckets"
    algorithm.close()


class _LargeTakeLong(OrderedAllReduce):
    begun = 0

    def begin(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor] | None:
        self.begun += 1
        begun = super().begin(buffer)
        assert begun is not None
        if buffer.numel() < 100_000:
            return begun
        late: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        threading.Timer(0.3, lambda: late.set_result(begun.wait())).start()
        return late


def test_the_exchange_has_ended_when_all_its_buckets_have(tmp_path: Path) -> None:
    run(a_large_bucket_before_a_small_one, tmp_path, 2)
