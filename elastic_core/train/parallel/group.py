"""The process group of a segment: who takes part, on which device, and the few small messages they exchange.

Rank 0 serves the keys by which the ranks find each other (`group_store`) and leaves the way to them in the run dir;
every forming of a group has a generation, the epoch under which it forms, and a token, so that nobody joins an earlier
one. Ranks listen at their node's own address, and on loopback where it has none; no stranger takes part (`strangers`).
What goes between ranks is bytes (JSON) and float64 vectors: nothing is pickled, and nothing encrypted.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore  # torch.distributed does not export the type

from elastic_core.errors import InfrastructureError
from elastic_core.host.exits import ExchangeBroken
from elastic_core.host.messages import Rendezvous
from elastic_core.host.network.interfaces import LOOPBACK, interface_of, is_loopback
from elastic_core.host.rundir import RunDir
from elastic_core.train.parallel.group_store import GroupStoreServer, PeerStore
from elastic_core.train.parallel.store_doors import Door, TcpDoor, UnixDoor
from elastic_core.train.parallel.strangers import closed_afterwards, prove_peers

RENDEZVOUS_SECONDS = 120.0
_LENGTH_BYTES, _SHORT_BYTES = 8, 4088  # of a message's head
COLLECTIVE_SECONDS = 600.0  # a commit may be retried for a lease's life while the others wait
TOKEN_BYTES = 32
_log = logging.getLogger(__name__)

_closed: list[dist.ProcessGroup] = []
"""The last one closed. Its last owner joins the backend's threads, which may want the interpreter's lock to free what
they sent: a model in DDP that outlives its group would hold the lock meanwhile, and wait for ever. Python does not."""


class Group:
    """One rank's membership. A group of one has no process group behind it and exchanges nothing."""

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        device: torch.device | None = None,
        store: GroupStoreServer | PeerStore | None = None,
        token: bytes = b"",
        address: str = LOOPBACK,
    ) -> None:
        """`address`: of this rank's node, where it may listen."""
        self.rank = rank
        self.world = world
        self.device = device or torch.device("cpu")
        self.address = address
        self._store, self._token = store, token

    @staticmethod
    def form(
        run_dir: RunDir, rank: int, world: int, device: torch.device, generation: int = 0, address: str = LOOPBACK
    ) -> Group:
        """Meet the other ranks. Raises `InfrastructureError` when they do not come in time, or a stranger comes, or
        this host does not have the address."""
        _closed.clear()
        if world == 1:
            return Group(rank, world, device, address=address)
        _listen_only_at(address)
        with communicating("the rendezvous"):
            store, token = _open_store(run_dir, rank, generation, address)
            group = Group(rank, world, device, store, token, address)
            with closed_afterwards(address):
                dist.init_process_group(
                    _backend(device),
                    store=PrefixStore(
                        f"generation-{generation}", store.store if isinstance(store, GroupStoreServer) else store
                    ),
                    rank=rank,
                    world_size=world,
                    timeout=timedelta(seconds=COLLECTIVE_SECONDS),
                )
                group.prove("the group")
        return group

    def prove(self, what: str, among: dist.ProcessGroup | None = None) -> None:
        """As `strangers.prove_peers`, for a group that was formed among ranks of this one."""
        prove_peers(self._token, what, among)

    def beside(self, what: str) -> dist.ProcessGroup:
        """Another group of the same ranks, for what is exchanged at the same time as something in this one.
        Collective; closed with this one."""
        with communicating(f"the forming of {what}"), closed_afterwards(self.address):
            made: dist.ProcessGroup | None = dist.new_group(
                backend=_backend(self.device), timeout=timedelta(seconds=COLLECTIVE_SECONDS)
            )
            assert made is not None, "every rank is in it"
            self.prove(what, made)
        return made

    def gather_vectors(self, values: Sequence[float]) -> list[list[float]]:
        """Every rank's vector (all of one length), by rank, on every rank."""
        if self.world == 1:
            return [list(values)]
        vector = torch.tensor(values, dtype=torch.float64)
        gathered = torch.empty(self.world * len(values), dtype=torch.float64)
        with communicating("the agreement on a step"):
            dist.all_to_all_single(gathered, vector.repeat(self.world))
        rows: list[list[float]] = gathered.view(self.world, -1).tolist()
        return rows

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's message, by rank, on every rank: in one exchange if all are short, else in two."""
        if self.world == 1:
            return [data]
        packets = self._gather(
            len(data).to_bytes(_LENGTH_BYTES, "big") + data[:_SHORT_BYTES], _LENGTH_BYTES + _SHORT_BYTES
        )
        sizes = [int.from_bytes(packet[:_LENGTH_BYTES], "big") for packet in packets]
        heads = [packet[_LENGTH_BYTES : _LENGTH_BYTES + size] for packet, size in zip(packets, sizes, strict=True)]
        longest = max(sizes) - _SHORT_BYTES
        if longest <= 0:
            return heads
        rests = self._gather(data[_SHORT_BYTES:], longest)
        return [(head + rest)[:size] for head, rest, size in zip(heads, rests, sizes, strict=True)]

    def _gather(self, data: bytes, width: int) -> list[bytes]:
        """Every rank's at most `width` bytes, filled up with zeros.

        What is short goes to everyone at once. gloo's all-gather passes messages on from rank to rank, so that each
        waits for all before it: twice the processor time, and the time, among four.
        """
        packet = torch.frombuffer(bytearray(data.ljust(width, b"\0")), dtype=torch.uint8)
        gathered = torch.empty(self.world * width, dtype=torch.uint8)
        with communicating("an exchange of messages"):
            if width <= _LENGTH_BYTES + _SHORT_BYTES:
                dist.all_to_all_single(gathered, packet.repeat(self.world))
            else:
                dist.all_gather_single(gathered, packet)
        return [row.numpy().tobytes() for row in gathered.view(self.world, width)]

    def from_first(self, data: bytes) -> bytes:
        """Rank 0's message on every rank; what the others give does not matter."""
        return self.from_rank(0, data)

    def from_rank(self, source: int, data: bytes) -> bytes:
        """That rank's message on every rank, as `from_first`: in one broadcast if it is short, else in two."""
        if self.world == 1:
            return data
        head = self._broadcast(
            source, len(data).to_bytes(_LENGTH_BYTES, "big") + data[:_SHORT_BYTES], _LENGTH_BYTES + _SHORT_BYTES
        )
        size = int.from_bytes(head[:_LENGTH_BYTES], "big")
        rest = self._broadcast(source, data[_SHORT_BYTES:], size - _SHORT_BYTES) if size > _SHORT_BYTES else b""
        return (head[_LENGTH_BYTES:] + rest)[:size]

    def _broadcast(self, source: int, data: bytes, width: int) -> bytes:
        """`source` gives at most `width` bytes, filled up with zeros."""
        packet = torch.zeros(width, dtype=torch.uint8)
        if self.rank == source:
            packet[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        with communicating("an exchange of messages"):
            dist.broadcast(packet, group_src=source)
        return packet.numpy().tobytes()

    def broadcast_tensors(self, tensors: Sequence[torch.Tensor], among: dist.ProcessGroup | None = None) -> None:
        """Overwrite every rank's tensors with those of the first rank of `among`: of all ranks, if that is None."""
        if self.world > 1 and tensors:
            with communicating("a broadcast of buffers"):
                for work in [dist.broadcast(tensor, group=among, group_src=0, async_op=True) for tensor in tensors]:
                    assert work is not None
                    work.wait()

    def log(self, text: str) -> None:
        """A line of log, once for the group."""
        if self.rank == 0:
            _log.info(text)

    def close(self) -> None:
        if dist.is_initialized():
            assert dist.group.WORLD is not None
            _closed[:] = [dist.group.WORLD]
            dist.destroy_process_group()
            _forget_meshes(self.device)
        if self._store is not None:
            self._store.close()


def _backend(device: torch.device) -> str:
    """Of tensors in the host's memory gloo, of those on CUDA devices NCCL."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def _forget_meshes(device: torch.device) -> None:
    """Have DTensor remember nothing of meshes whose groups are gone.

    It remembers what an operation gives, mesh included, by arguments that are equal, and a mesh equals any of the same
    sizes and ranks, whichever rank this process was when it was made: the next group's ranks would look for the groups
    of the last one by their names. Each thread remembers for itself: backward passes have one for each CUDA device.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import DTensor

    def forget() -> None:
        """As `torch.distributed.tensor.debug` does, whose import takes more than a second."""
        DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()  # type: ignore[no-untyped-call]
        torch._C._clear_DTensor_sharding_propagator_cache()

    forget()
    if device.type == "cuda":
        loss = torch.zeros((), device=device, requires_grad=True)
        loss.register_hook(lambda _: forget())  # type: ignore[no-untyped-call]
        loss.backward()  # type: ignore[no-untyped-call]


@contextmanager
def communicating(what: str) -> Iterator[None]:
    """Turn torch's errors of a broken connection into ours."""
    try:
        yield
    except RuntimeError as error:
        raise InfrastructureError(
            f"Lost the other ranks during {what}: {_first_line(error)}. A worker or its machine is gone, or it hangs; "
            f"its own log says why."
        ) from error


def lost_peer(error: BaseException) -> bool:
    """Whether this is torch's word for a connection to another rank that broke, wherever it was raised.

    DDP exchanges messages within a user's own forward pass too (when it lays out its buckets), and so does a model that
    is partitioned; a pipeline stage raises its own error from what broke in its forward pass.
    """
    if isinstance(error, dist.DistError):
        return True
    if isinstance(error, RuntimeError) and any(mark in str(error) for mark in ("gloo/transport", "NCCL error")):
        return True
    return error.__cause__ is not None and lost_peer(error.__cause__)


@contextmanager
def exchanging() -> Iterator[None]:
    """A broken connection to another rank is ours; any other error is the user's own."""
    try:
        yield
    except RuntimeError as error:
        if not lost_peer(error):
            raise
        raise ExchangeBroken(f"The exchange between ranks broke: {error}. Another rank is gone.") from error


def _listen_only_at(address: str) -> None:
    """Bind gloo and NCCL to the address's interface. Without a name gloo resolves the host's, which may lead anywhere,
    and NCCL takes what it finds; NCCL's monitoring (RAS) answers whoever asks at its port."""
    interface = interface_of(address)
    wanted = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}", "NCCL_RAS_ENABLE": "0"}
    for name, value in wanted.items():
        if os.environ.get(name, value) != value:
            _log.warning("%s=%s is passed over: this node's address is %s, so it is %s",
                         name, os.environ[name], address, value)  # fmt: skip
        os.environ[name] = value


def _open_store(
    run_dir: RunDir, rank: int, generation: int, address: str
) -> tuple[GroupStoreServer | PeerStore, bytes]:
    """The group's store, and its token."""
    if rank == 0:
        token = secrets.token_bytes(TOKEN_BYTES)
        name = f"rendezvous-{generation}.sock"
        here: Door = UnixDoor(run_dir.path / name) if is_loopback(address) else TcpDoor(address)
        server = GroupStoreServer(here, token, RENDEZVOUS_SECONDS)
        if isinstance(server.door, TcpDoor):
            run_dir.write(Rendezvous("", token, generation, host=server.door.host, port=server.door.port))
        else:
            run_dir.write(Rendezvous(name, token, generation))
        return server, token
    deadline = time.monotonic() + RENDEZVOUS_SECONDS
    while True:
        message = run_dir.read(Rendezvous)
        if message is not None and message.generation == generation:
            return PeerStore(_door(message, run_dir), message.token, RENDEZVOUS_SECONDS), message.token
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"Rank {rank} waited {RENDEZVOUS_SECONDS:g} s for rank 0 to write {run_dir.path}/rendezvous.json."
            )
        time.sleep(0.02)


def _door(message: Rendezvous, run_dir: RunDir) -> Door:
    return UnixDoor(run_dir.path / message.socket) if message.socket else TcpDoor(message.host, message.port)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
