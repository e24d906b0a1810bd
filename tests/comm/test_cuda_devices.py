"""Exchanges of gradients and weights that are on CUDA devices: the same messages and the same training as on the CPU.

Not seen to run yet where there is no such device. Two ranks share one device where there are not two: what would be
NCCL's, gloo sums then.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elastic_core.comm.algorithms import NAMES, averages, averaging_class, create, leaves_layers_out
from elastic_core.comm.minmax_uint8 import MinMaxUInt8
from elastic_core.comm.minmax_uint8 import message_bytes as bytes_of_codes
from elastic_core.comm.optimizers.signs import Signs
from tests.train import forked

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none")
CPU = torch.device("cpu")
WORLD, STEPS, WARMUP = 2, 8, 3


def codes(_folder: str, _rank: int) -> int:
    for size in (1, 4096, 65_537, 9_000_001):
        values = torch.randn(size, generator=torch.Generator().manual_seed(size))
        signs = Signs()
        for codec, length, not_compared in (
            (MinMaxUInt8(), bytes_of_codes(size), 0),
            (signs, signs.message_bytes(size), signs.header_bytes(size)),
        ):
            here, there = (torch.zeros(length, dtype=torch.uint8) for _ in range(2))
            codec.encode(values.clone(), here)
            codec.encode(values.cuda(), there)
            assert torch.equal(here[not_compared:], there[not_compared:]), (type(codec), size)
            decoded, on_device = torch.empty(size), torch.empty(size, device="cuda")
            codec.decode(here, decoded)
            codec.decode(here, on_device)
            assert torch.equal(decoded, on_device.cpu()), (type(codec), size)
    return 0


def test_a_device_writes_and_reads_the_messages_of_the_host(tmp_path):
    """Of signs the scales may differ in their last bits: a device adds in another order."""
    _run(codes, tmp_path, 1)


def trained(name: str, device: torch.device, rank: int) -> list[Tensor]:
    """The weights after a few steps of Adam."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    wrapped: nn.Module = model
    if averages(name):
        averaging = averaging_class(name)(None, interval=2)
        averaging.attach(model, optimizer)
    else:
        wrapped = DistributedDataParallel(model, find_unused_parameters=leaves_layers_out(name))
        group = dist.new_group(backend="gloo") if leaves_layers_out(name) else None
        exchange = create(name, device, group, warmup_steps=WARMUP)
        exchange.attach(wrapped)
        exchange.follow(optimizer)
    for step in range(STEPS):
        x = torch.randn(8, 40, generator=torch.Generator().manual_seed(10 * step + rank)).to(device)
        optimizer.zero_grad(set_to_none=True)
        ((wrapped(x) - x[:, :1]).square().mean() / (1 if averages(name) else WORLD)).backward()
        optimizer.step()
    if averages(name):
        averaging.settle()
        averaging.close()
    else:
        exchange.close()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def as_on_the_cpu(folder: str, rank: int, name: str) -> int:
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group(
        "gloo" if torch.cuda.device_count() < WORLD else "cpu:gloo,cuda:nccl",
        init_method=f"file://{folder}/store", rank=rank, world_size=WORLD,
    )  # fmt: skip
    for own, want in zip(trained(name, device, rank), trained(name, CPU, rank), strict=True):
        torch.testing.assert_close(own, want, rtol=0, atol=2e-3)  # a step of Adam is 1e-3
    dist.barrier()
    dist.destroy_process_group()
    return 0


@pytest.mark.parametrize("name", [name for name in NAMES if name != "async_average"])
def test_training_on_devices_goes_as_on_the_cpu(tmp_path, name):
    """But for `async_average`, which no two runs have alike."""
    _run(as_on_the_cpu, tmp_path, WORLD, name)


def _run(check, folder: Path, world: int, *arguments: object) -> None:
    """In processes of their own: a device that was touched bears no fork."""
    processes = [forked.start(check, str(folder), rank, *arguments, log=folder / f"log{rank}") for rank in range(world)]
    codes_of_exit = forked.join(processes, 120.0)
    assert codes_of_exit == [0] * world, [path.read_text() for path in sorted(folder.glob("log*"))]
