"""`torch.distributed.checkpoint` over this format: plain `dcp.save` writes into it, plain `dcp.load` reads from it.

    dcp.save(state_dict, storage_writer=CheckpointWriter(store, uri, header))
    dcp.load(state_dict, storage_reader=CheckpointReader(store, uri))

DCP plans who writes and reads what; tiles, checksums, the check that every tensor is whole and the manifest are this
format's. Values that are no tensors are stored as data under their names: what JSON cannot hold is refused, never
pickled. A rank writes one part of a tensor.
"""

from __future__ import annotations

import io
import json
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from elastic_core.domain import from_json, to_json
from elastic_core.errors import UserError
from elastic_core.state.format.manifest import (
    CheckpointHeader,
    Manifest,
    ShardInfo,
    Written,
    read_manifest,
    write_manifest,
)
from elastic_core.state.format.read_plan import Destination
from elastic_core.state.format.reading import fill
from elastic_core.state.format.scalars import pack, unpack
from elastic_core.state.format.writing import write_shard
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.dtypes import dtype_of
from elastic_core.state.stores.store import CheckpointStore

VALUES = "dcp"  # under this key of the manifest's scalars


class CheckpointWriter(StorageWriter):
    """Writes one checkpoint; `uri` (see `checkpoint_uri`) is the same on every rank. `written` is the first rank's."""

    def __init__(self, store: CheckpointStore, uri: str, header: CheckpointHeader) -> None:
        self._store = store
        self._uri = uri
        self._header = header
        self.written: Written | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        _refuse_id(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors: dict[str, Tensor] = {}
        boxes: dict[str, Box] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        values: dict[str, Any] = {}
        for item in plan.items:
            name = item.index.fqn
            if item.type is WriteItemType.BYTE_IO:
                values[name] = _value_of(name, planner.resolve_data(item))
                continue
            assert item.tensor_data is not None
            box = Box(tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.chunk.sizes))
            if name in boxes:
                raise UserError(f"This rank holds several parts of {name}, {boxes[name]} and {box}: give it one.")
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, Tensor)
            tensors[name], boxes[name], shapes[name] = tensor.detach(), box, tuple(item.tensor_data.size)
        if not plan.items:
            return _done([])
        rank = dist.get_rank() if dist.is_initialized() else 0
        shard = write_shard(self._store, self._uri, rank, tensors, boxes, shapes)
        message = json.dumps({"shard": to_json(shard), "values": values})  # goes with one of the items, for all
        results = [WriteResult(item.index, _size(item), message if i == 0 else "") for i, item in enumerate(plan.items)]
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:  # noqa: ARG002 - DCP's signature
        messages = [json.loads(result.storage_data) for rank in results for result in rank if result.storage_data]
        shards = [from_json(ShardInfo, message["shard"]) for message in messages]
        values = {name: value for message in messages for name, value in message["values"].items()}
        self.written = write_manifest(self._store, self._uri, shards, self._header, {VALUES: values})

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 - as above
        return False


class CheckpointReader(StorageReader):
    """Reads any checkpoint of this format, whoever wrote it; each tile of it is read once for a rank, and checked."""

    def __init__(self, store: CheckpointStore, uri: str, sha256: str | None = None) -> None:
        self._store = store
        self._uri = uri
        self._sha256 = sha256
        self._known: Manifest | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        _refuse_id(checkpoint_id)
        self._known = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002 - as above
        entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {
            name: BytesStorageMetadata() for name in self._manifest.scalars.get(VALUES, {})
        }
        for name, entry in self._manifest.tensors.items():
            size = torch.Size(entry.shape)
            whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
            entries[name] = TensorStorageMetadata(TensorProperties(dtype_of(entry.dtype)), size, [whole])
        return Metadata(entries)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        places: list[Destination] = []
        targets: list[tuple[ReadItem, Tensor, Tensor]] = []
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, _bytes_of(unpack(self._manifest.scalars[VALUES][name])))
                continue
            target = planner.resolve_tensor(item).detach()
            stored = dtype_of(self._manifest.tensors[name].dtype)
            straight = target.device.type == "cpu" and target.dtype == stored
            place = target if straight else torch.empty(target.shape, dtype=stored)
            places.append(Destination(name, Box(tuple(item.storage_offsets), tuple(item.lengths)), place))
            targets.append((item, target, place))
        fill(self._store, self._manifest, places)
        for item, target, place in targets:
            if place is not target:
                target.copy_(place)
            planner.commit_tensor(item, target)
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 - as above
        return False

    @property
    def _manifest(self) -> Manifest:
        if self._known is None:
            self._known = read_manifest(self._store, self._uri, self._sha256)
        return self._known


def _refuse_id(checkpoint_id: str | os.PathLike[str] | None) -> None:
    if checkpoint_id:
        raise UserError(f"checkpoint_id {checkpoint_id!r}: a checkpoint is named by store and uri, leave the id out.")


def _value_of(name: str, data: Tensor | io.BytesIO) -> Any:
    """JSON of what DCP has already turned into bytes of torch.save; only plain data is taken back out of them."""
    assert isinstance(data, io.BytesIO)
    data.seek(0)
    try:
        value = torch.load(data, weights_only=True)
    except Exception as error:
        raise UserError(f"{name} is neither a tensor nor plain data, which is all a checkpoint holds.") from error
    return pack(value, name)


def _bytes_of(value: Any) -> io.BytesIO:
    data = io.BytesIO()
    torch.save(value, data)
    data.seek(0)
    return data


def _size(item: WriteItem) -> int:
    return item.tensor_storage_size() or (item.bytes_io_data.nbytes if item.bytes_io_data else 0)


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
