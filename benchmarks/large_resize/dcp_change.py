"""The same change of layout by torch.distributed.checkpoint: processes that live on save what they hold and load what
the new layout gives them. Tensors only: no model is built, no group formed, no step taken within the clock."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from benchmarks.large_resize.process_watch import ProcessWatch
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.dtypes import dtype_of
from elastic_core.state.layout.layout import StateLayout, TensorMeta, partition

PATTERN = 251  # what tensors are filled with repeats after so many elements


@dataclass(frozen=True, slots=True)
class DcpSeconds:
    save: float
    load: float
    cpu: float  # over all processes
    peak_bytes: int  # the same at once, while it went on


def change_by_dcp(metas: Mapping[str, TensorMeta], old: StateLayout, new: StateLayout, folder: Path) -> DcpSeconds:
    """By a process for each rank; both layouts have as many. Raises `RuntimeError` when one of them fails."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(old.world):
        here, there = context.Pipe()
        processes.append(context.Process(target=_rank, args=(rank, dict(metas), old, new, folder, there), daemon=True))
        processes[-1].start()
        there.close()
        pipes.append(here)
    watch = ProcessWatch()
    watch.pids = tuple(process.pid for process in processes if process.pid is not None)
    try:
        with watch.looking():
            instants = [pipe.recv() for pipe in pipes]
            for pipe in pipes:
                pipe.send("seen")
    except EOFError as error:
        raise RuntimeError("a rank of DCP failed; see above") from error
    finally:
        for process in processes:
            process.join()
    began, saved, loaded = min(at[0] for at in instants), max(at[1] for at in instants), max(at[2] for at in instants)
    return DcpSeconds(saved - began, loaded - saved, watch.cpu_seconds(began, loaded), watch.most_bytes(began, loaded))


def _rank(
    rank: int, metas: dict[str, TensorMeta], old: StateLayout, new: StateLayout, folder: Path, pipe: Connection
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/dcp-group", rank=rank, world_size=old.world)
    meshes = [init_device_mesh("cpu", layout.mesh.sizes, mesh_dim_names=layout.mesh.axes) for layout in (old, new)]
    boxes = partition(old, metas)[rank]
    held = {name: _filled(metas[name], box) for name, box in boxes.items()}
    state = _as_dtensors(held, metas, old, meshes[0])
    dist.barrier()
    began = time.time()
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder / "dcp"))  # each file with fsync
    dist.barrier()
    saved = time.time()
    del state, held
    boxes = partition(new, metas)[rank]
    wanted = {name: torch.empty(box.shape, dtype=dtype_of(metas[name].dtype)) for name, box in boxes.items()}
    dcp.load(_as_dtensors(wanted, metas, new, meshes[1]), storage_reader=dcp.FileSystemReader(folder / "dcp"))
    dist.barrier()
    loaded = time.time()
    pipe.send((began, saved, loaded))
    pipe.recv()
    for name, box in boxes.items():
        assert torch.equal(wanted[name], _filled(metas[name], box)), name
    dist.destroy_process_group()


def _filled(meta: TensorMeta, box: Box) -> Tensor:
    whole = torch.arange(torch.Size(meta.shape).numel()).remainder_(PATTERN).to(dtype_of(meta.dtype))
    return whole.view(meta.shape)[box.slices()].clone()


def _as_dtensors(
    local: Mapping[str, Tensor], metas: Mapping[str, TensorMeta], layout: StateLayout, mesh: DeviceMesh
) -> dict[str, Any]:
    """Over the axes that a tensor is not limited to some ranks of."""
    tensors = {}
    for name, tensor in local.items():
        placement, shape = layout.placements[name], torch.Size(metas[name].shape)
        axes = tuple(axis for axis in layout.mesh.axes if axis not in placement.at)
        dims = {cut.axis: cut.dim for cut in placement.cuts}
        placements = [Shard(dims[axis]) if axis in dims else Replicate() for axis in axes]
        stride = torch.empty(shape, device="meta").stride()
        tensors[name] = DTensor.from_local(tensor, mesh[axes], placements, run_check=False, shape=shape, stride=stride)
    return tensors
