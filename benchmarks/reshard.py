"""A state saved by 4 ranks and loaded by 2, 3 and 4, cut by rows and by columns: this format against torch's DCP, DCP
in safetensors, plain torch.save and what the machine can do at all.

Every rank is a process. What is counted is processor time summed over the ranks, which neighbours on the machine
disturb least, and bytes read. Ours is what a job does (`state.reshard.collective_load`): weights go to the model's
memory, the optimizer's state to new memory, whose making counts; the others fill memory that is there already. A save
ends with the bytes on the disk (fsync). Ours makes and checks checksums, others do not; so DCP in safetensors also
stands there with a CRC-32C of what it has filled, and so doing what ours does, with the optimizer's state in new memory
besides. Methods take turns, the median counts. On a virtual machine that gives free memory back to its host, new memory
may cost more than all else: it stands among the limits, touched after a pause as long as other methods take.

Bars: a load at most a stated multiple of a warm copy and no slower than the better DCP (0.7 of it for columns on 4),
at most 1.02 times the bytes needed, and a save at most 2 times a plain write with fsync (3 with `--quick`).
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from benchmarks.common.report import Report
from benchmarks.common.state_limits import limits
from elastic_core.domain import Slot, from_json, to_json
from elastic_core.host.environment import ALLOCATION
from elastic_core.state.format.checkpoint_format import (
    ShardInfo,
    plan_shards,
    read_manifest,
    write_manifest,
    write_shard,
)
from elastic_core.state.format.manifest import CheckpointHeader, checkpoint_uri
from elastic_core.state.layout.layout import TENSOR, Mesh, Placement, Split, StateLayout, TensorMeta, partition
from elastic_core.state.reshard import shared
from elastic_core.state.reshard.collective_load import load_collectively
from elastic_core.state.reshard.rank_load import LoadGroup
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.parallel.group import Group

HEADER = CheckpointHeader(job_id="bench", step=1, samples=1)
URI = checkpoint_uri(HEADER, "x")
SAVERS = 4
WIDTH = 1024
CUTS = {"rows": 0, "columns": 1}
METHODS = ("ours", "DCP", "DCP safetensors", "torch.save")
CHECKED = "DCP safetensors, checked"
ALIKE = "the same, new memory"
LOADS = (*METHODS[:3], CHECKED, ALIKE)


def metas_of(mib: int) -> dict[str, TensorMeta]:
    """Weights and Adam's moments of transformer blocks and of one large embedding, about `mib` MiB in all."""
    block = {"attn.qkv": (3 * WIDTH, WIDTH), "attn.out": (WIDTH, WIDTH), "mlp.up": (4 * WIDTH, WIDTH),
             "mlp.down": (WIDTH, 4 * WIDTH), "norm.weight": (WIDTH,), "norm.bias": (WIDTH,)}  # fmt: skip
    shapes = {"embedding": ((mib << 18) // 12 // WIDTH, WIDTH)}
    layer = 0
    while sum(int(np.prod(shape)) for shape in shapes.values()) * 12 < mib << 20:
        shapes.update({f"blocks.{layer}.{name}": shape for name, shape in block.items()})
        layer += 1
    kinds = ("model/{}", "optim/{}/exp_avg", "optim/{}/exp_avg_sq")
    return {kind.format(name): TensorMeta("float32", shape) for name, shape in shapes.items() for kind in kinds}


def layout_of(metas: Mapping[str, TensorMeta], world: int, dim: int) -> StateLayout:
    """Matrices cut along `dim`; vectors along their only one by rows, whole on every rank by columns."""
    placements = {
        name: Placement((Split(TENSOR, dim),)) if dim < len(meta.shape) else Placement() for name, meta in metas.items()
    }
    return StateLayout(Mesh((TENSOR,), (world,)), placements, tuple(Slot("here", i, "cpu") for i in range(world)))


def whole_state(path: Path, metas: Mapping[str, TensorMeta]) -> dict[str, Tensor]:
    """The state in a file that all processes map."""
    size = sum(int(np.prod(meta.shape)) for meta in metas.values())
    flat = torch.from_file(str(path), shared=True, size=size, dtype=torch.float32)
    tensors, offset = {}, 0
    for name, meta in metas.items():
        count = int(np.prod(meta.shape))
        tensors[name] = flat[offset : offset + count].view(meta.shape)
        offset += count
    return tensors


@dataclass
class Rank:
    """One process of a world that saves or loads under one cut."""

    group: Group
    folder: Path
    metas: dict[str, TensorMeta]
    state: dict[str, Tensor]
    dim: int

    def __post_init__(self) -> None:
        self.layout = layout_of(self.metas, self.group.world, self.dim)
        self.boxes = partition(self.layout, self.metas)[self.group.rank]

    def of_rank(self) -> dict[str, Tensor]:
        return {name: self.state[name][box.slices()].clone() for name, box in self.boxes.items()}

    def as_dtensors(self, local: Mapping[str, Tensor]) -> dict[str, Tensor]:
        mesh = init_device_mesh("cpu", (self.group.world,))
        tensors = {}
        for name, tensor in local.items():
            shape = torch.Size(self.metas[name].shape)
            placement = Shard(self.dim) if self.dim < len(shape) else Replicate()
            stride = torch.empty(shape, device="meta").stride()
            tensors[name] = DTensor.from_local(tensor, mesh, [placement], run_check=False, shape=shape, stride=stride)
        return tensors


def save(rank: Rank, method: str, local: Mapping[str, Tensor], dtensors: dict[str, Tensor]) -> None:
    folder = rank.folder / method
    if method == "ours":
        store = open_store(str(folder))
        of_rank = plan_shards(rank.layout, rank.metas)[rank.group.rank]
        shapes = {name: meta.shape for name, meta in rank.metas.items()}
        info = write_shard(store, URI, rank.group.rank, {name: local[name] for name in of_rank}, of_rank, shapes)
        infos = rank.group.gather_bytes(json.dumps(to_json(info)).encode())
        if rank.group.rank == 0:
            shards = [from_json(ShardInfo, json.loads(data)) for data in infos]
            write_manifest(store, URI, shards, HEADER, {}, rank.layout)
    elif method == "DCP":
        dcp.save(dtensors, storage_writer=dcp.FileSystemWriter(folder, sync_files=True))
    elif method == "DCP safetensors":
        dcp.save(dtensors, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
        for path in folder.glob(f"*{rank.group.rank + 1:05d}*"):
            sync(path)
    else:
        folder.mkdir(exist_ok=True)
        path = folder / f"{rank.group.rank}.pt"
        torch.save(dict(local), path)
        sync(path)


def sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


@contextmanager
def measured(rank: Rank, results: list[dict[str, Any]], **what: Any) -> Iterator[dict[str, Any]]:
    """Processor time, bytes read and time of all ranks together, from a common start."""
    rank.group.gather_bytes(b"")
    cpu, read, started = time.process_time(), bytes_read(), time.perf_counter()
    more: dict[str, Any] = {}
    yield more
    own = {"cpu": time.process_time() - cpu, "read": bytes_read() - read, "wall": time.perf_counter() - started}
    everyone = [json.loads(data) for data in rank.group.gather_bytes(json.dumps({**own, **more}).encode())]
    results.append(
        {**what, "cpu": sum(spent["cpu"] for spent in everyone), "read": sum(spent["read"] for spent in everyone),
         "wall": max(spent["wall"] for spent in everyone), "store": sum(spent.get("store", 0) for spent in everyone)}
    )  # fmt: skip


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def save_all(rank: Rank, rounds: int) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    local = rank.of_rank()
    dtensors = rank.as_dtensors(local)
    for number in range(rounds):
        for method in METHODS:
            if rank.group.rank == 0 and (rank.folder / method).exists():
                os.system(f"rm -r '{rank.folder / method}'")  # noqa: S605 - a folder of ours
            with measured(rank, results, what="save", method=method, round=number):
                save(rank, method, local, dtensors)
    return results


def load_all(rank: Rank, rounds: int) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    plain = {name: torch.zeros(box.shape) for name, box in rank.boxes.items()}
    dtensors = rank.as_dtensors(plain)
    for number in range(rounds):
        with measured(rank, results, what="load", method="ours", round=number) as more:
            store = open_store(str(rank.folder / "ours"))
            manifest = read_manifest(store, URI)
            room = [shared.room(shared.FOLDER)] * rank.group.world
            load_group = LoadGroup(
                rank=rank.group.rank, slots=rank.layout.slots, exchange=rank.group.gather_bytes, room=room
            )
            weights = {name: tensor for name, tensor in plain.items() if name.startswith("model/")}
            loaded = load_collectively(
                store, manifest, partition(rank.layout, rank.metas), load_group, print, into=weights
            )
            more["store"] = loaded.received.store_bytes
        if number == 0:
            check(rank, loaded.tensors, "ours")
        del loaded
        readers = {"DCP": dcp.FileSystemReader, "DCP safetensors": HuggingFaceStorageReader}
        for method in LOADS[1:]:
            saved = METHODS[2] if method in (CHECKED, ALIKE) else method
            with measured(rank, results, what="load", method=method, round=number):
                filled, places = plain, dtensors
                if method == ALIKE:
                    filled = {
                        name: t if name.startswith("model/") else torch.empty_like(t) for name, t in plain.items()
                    }
                    places = rank.as_dtensors(filled)
                dcp.load(places, storage_reader=readers[saved](str(rank.folder / saved)))  # type: ignore[operator]
                if saved != method:
                    for tensor in filled.values():
                        google_crc32c.value(tensor.view(-1).numpy())
            if number == 0:
                check(rank, filled, method)
            del filled, places
            if number == 0:
                for tensor in plain.values():
                    tensor.zero_()
    return results


def check(rank: Rank, received: Mapping[str, Tensor], method: str) -> None:
    for name, box in rank.boxes.items():
        assert torch.equal(received[name], rank.state[name][box.slices()]), (method, name)


def run_rank(rank: int, world: int, folder: Path, mib: int, rounds: int, answer: Any) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # as workers do with what is loaded before they train
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    group_file = f"file://{folder}/group-{world}"
    dist.init_process_group("gloo", init_method=group_file, rank=rank, world_size=world)
    metas = metas_of(mib)
    state = whole_state(folder / "state", metas)
    results: list[dict[str, Any]] = []
    for dim in CUTS.values():
        place = Rank(Group(rank, world), folder, metas, state, dim)
        if world == SAVERS and dim == 0:
            results += save_all(place, rounds)
        results += [{**result, "world": world, "dim": dim} for result in load_all(place, rounds)]
    if rank == 0:
        answer.send(results)
    dist.destroy_process_group()


def run_world(world: int, folder: Path, mib: int, rounds: int) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    of_rank = lambda rank: (rank, world, folder, mib, rounds, there)  # noqa: E731
    processes = [context.Process(target=run_rank, args=of_rank(rank)) for rank in range(world)]
    for process in processes:
        process.start()
    there.close()
    try:
        results: list[dict[str, Any]] = here.recv()
    except EOFError as error:
        raise RuntimeError(f"a rank of {world} failed; see above") from error
    finally:
        for process in processes:
            process.join()
    return results


def median(results: list[dict[str, Any]], key: str, **which: Any) -> float:
    """Of the rounds after the first, which warms up imports and allocators."""
    values = [
        result[key]
        for result in results
        if result["round"] > 0 and all(result.get(name) == value for name, value in which.items())
    ]
    return statistics.median(values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="128 MiB, 2 and 4 ranks, fewer rounds")
    parser.add_argument("--folder", default=None, help="where to write; a temporary folder by default")
    parser.add_argument("--rounds", type=int, default=None, help="how often; the first only warms up")
    arguments = parser.parse_args()
    mib, rounds, worlds = (128, 3, (4, 2)) if arguments.quick else (1024, 6, (4, 3, 2))
    rounds = max(2, arguments.rounds or rounds)
    report = Report("reshard", quick=arguments.quick)
    os.environ.update(ALLOCATION)  # torch's, for all methods: as jobs have it
    metas = metas_of(mib)
    size = sum(int(np.prod(meta.shape)) * 4 for meta in metas.values())
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        for tensor in whole_state(folder / "state", metas).values():
            tensor.normal_()
        results = [result for world in worlds for result in run_world(world, folder, mib, rounds)]
        machine = limits(folder, size >> 20, rounds)
    best = {name: statistics.median(raw) for name, raw in machine.items()}
    report.figure("state_bytes", size)
    report.figure("num_tensors", len(metas))
    report.figure("limits_seconds", machine)
    report.figure("raw", results)
    report.table(f"the machine, {size >> 20} MiB: seconds", list(best), [list(best.values())])
    saves = {m: median(results, "cpu", what="save", method=m) for m in METHODS}
    report.table(
        f"save from {SAVERS} ranks: CPU-seconds over all ranks", ("method", "CPU s", "over the limit", "wall s"),
        [(m, cpu, cpu / best["write"], median(results, "wall", what="save", method=m)) for m, cpu in saves.items()],
    )  # fmt: skip
    cases = [(dim, world) for dim in CUTS for world in worlds]
    of = lambda m, dim, world, key="cpu": median(  # noqa: E731
        results, key, what="load", method=m, dim=CUTS[dim], world=world
    )
    report.table(
        "load: CPU-seconds over all ranks, bytes read over bytes held",
        ("case", *LOADS, "over the limit", "bytes"),
        [(f"{world} ranks by {dim}", *(of(m, dim, world) for m in LOADS),
          of("ours", dim, world) / best["read, warm"], of("ours", dim, world, "store") / size) for dim, world in cases],
    )  # fmt: skip
    bars(report, results, best, cases, of, size, arguments.quick)
    return report.finish()


def bars(
    report: Report, results: list[dict[str, Any]], best: Mapping[str, float], cases: list[tuple[str, int]],
    of: Callable[..., float], size: int, quick: bool,
) -> None:  # fmt: skip
    # What does not grow with the state (the manifest, the plan, meeting) weighs eight times as much in --quick.
    most = {"rows": 5.0, "columns": 7.0} if quick else {"rows": 2.5, "columns": 4.0}
    for dim, world in cases:
        ours, rival = of("ours", dim, world), min(of(m, dim, world) for m in METHODS[1:3])
        ratio = ours / best["read, warm"]
        case = f"load on {world} ranks by {dim}"
        report.bar(f"{case}: over a warm copy", want=f"<= {most[dim]}", got=round(ratio, 2), ok=ratio <= most[dim])
        want = 0.7 if (dim, world) == ("columns", 4) else 1.0
        report.bar(
            f"{case}: over the better DCP", want=f"<= {want}", got=round(ours / rival, 2), ok=ours <= want * rival
        )
        checked = ours / of(CHECKED, dim, world)
        report.figure(f"{dim}_on_{world}_over_checked_dcp", round(checked, 3))
        report.figure(f"{dim}_on_{world}_over_checked_dcp_in_new_memory", round(ours / of(ALIKE, dim, world), 3))
        read = of("ours", dim, world, "store") / size
        report.bar(f"{case}: bytes read over bytes needed", want="<= 1.02", got=round(read, 4), ok=read <= 1.02)
    ratio = median(results, "cpu", what="save", method="ours") / best["write"]
    limit = 3.0 if quick else 2.0
    report.bar("save: over a plain write with fsync", want=f"<= {limit}", got=round(ratio, 2), ok=ratio <= limit)


if __name__ == "__main__":
    sys.exit(main())
