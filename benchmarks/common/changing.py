"""A change of layout between real processes, one a device, carried out by everyone or through one central process.

All of them are on this machine; a device's host is only a name (four devices a host): memory is shared by the devices
of one host and goes through a socket between others. Bytes are counted where they arrive, at the sockets.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar

import torch
from torch import Tensor

from elastic_core.domain import Slot
from elastic_core.state.layout.layout import StateLayout, TensorMeta, partition
from elastic_core.state.reshard import collective_load, shared
from elastic_core.state.reshard.change_plan import Plan
from elastic_core.state.reshard.memories import Memory, Part, Received
from elastic_core.state.reshard.peers import Address, RangeServer
from elastic_core.state.reshard.pieces import Link
from elastic_core.state.reshard.rank_load import LoadGroup, OldMemories

EVERYONE, NEW = "everyone", "new"
SECRET = b"benchmark"
Moves = Mapping[tuple[Slot, Slot], int]  # bytes by (from, to)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`phases` follow one another: one plan of everyone, or gather and scatter."""

    metas: Mapping[str, TensorMeta]
    state: Mapping[str, Tensor]
    old: StateLayout
    target: StateLayout  # on the slots of the map
    phases: tuple[Plan, ...]

    @property
    def devices(self) -> tuple[Slot, ...]:
        return tuple(sorted({*self.old.slots, *self.target.slots}))

    def memory_before(self, slot: Slot) -> Memory:
        if slot not in self.old.slots:
            return {}
        boxes = partition(self.old, self.metas)[self.old.slots.index(slot)]
        return {name: (Part(box, self.state[name][box.slices()].clone()),) for name, box in boxes.items()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """`moves` of every phase; `seconds` from the common start to the last device's end."""

    moves: tuple[Moves, ...]
    seconds: float
    cpu_seconds: float  # over all devices


@dataclass(slots=True)
class _DeviceOutcome:
    """What one device says in the end."""

    started: float = 0.0
    ended: float = 0.0
    cpu: float = 0.0
    taken: list[Mapping[Address, int]] = field(default_factory=list)  # of every phase, by server
    filled: list[Mapping[Link, int]] = field(default_factory=list)
    servers: dict[Address, Slot] = field(default_factory=dict)


class Counter(socket.socket):
    """Counts what every socket of this process takes in, by the other side's address."""

    taken: ClassVar[defaultdict[Address, int]] = defaultdict(int)
    lock: ClassVar[threading.Lock] = threading.Lock()

    def recv_into(self, *arguments: Any) -> int:
        num = super().recv_into(*arguments)
        if num:
            with Counter.lock:
                Counter.taken[self.getpeername()] += num
        return num

    @classmethod
    def reset(cls) -> Mapping[Address, int]:
        with cls.lock:
            taken, cls.taken = dict(cls.taken), defaultdict(int)
        return taken


def carry_out(change: Change) -> Outcome:
    """Forks a process for every device. Raises `RuntimeError` when one of them fails."""
    context = multiprocessing.get_context("fork")
    devices = change.devices
    pipes, processes = [], []
    for slot in devices:
        here, there = context.Pipe()
        processes.append(context.Process(target=_device, args=(slot, change, there), daemon=True))
        processes[-1].start()
        there.close()
        pipes.append(here)
    groups = {EVERYONE: range(len(devices)), NEW: [devices.index(slot) for slot in change.target.slots]}
    try:
        outcomes = _hand_round(pipes, groups)
    finally:
        for process in processes:
            process.join(10)
            if process.exitcode is None:
                process.kill()
    seconds = max(outcome.ended for outcome in outcomes) - min(outcome.started for outcome in outcomes)
    return Outcome(_moves(change, devices, outcomes), seconds, sum(outcome.cpu for outcome in outcomes))


def load_of_links(moves: Moves) -> dict[str, int]:
    """Bytes over every link that carries any: what a device, or a host, sends or takes in, whichever is more."""
    sent: defaultdict[str, int] = defaultdict(int)
    taken: defaultdict[str, int] = defaultdict(int)
    for (source, target), size in moves.items():
        sent[f"device {source.node}/{source.index}"] += size
        taken[f"device {target.node}/{target.index}"] += size
        if source.node != target.node:
            sent[f"host {source.node}"] += size
            taken[f"host {target.node}"] += size
    return {link: max(sent[link], taken[link]) for link in sorted({*sent, *taken})}


def _hand_round(pipes: Sequence[Connection], groups: Mapping[str, Sequence[int]]) -> list[_DeviceOutcome]:
    """Gives every message of a group to all of it, until each device has said how it went."""
    outcomes: dict[int, _DeviceOutcome] = {}
    waiting: dict[str, dict[int, bytes]] = {name: {} for name in groups}
    while len(outcomes) < len(pipes):
        for pipe in wait([pipe for i, pipe in enumerate(pipes) if i not in outcomes]):
            sender = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                kind, body = pipes[sender].recv()
            except EOFError as error:
                raise RuntimeError(f"device {sender} failed; see above") from error
            if kind == "outcome":
                outcomes[sender] = body
                continue
            waiting[kind][sender] = body
            if len(waiting[kind]) == len(groups[kind]):
                everyone = [waiting[kind][i] for i in groups[kind]]
                waiting[kind] = {}
                for i in groups[kind]:
                    pipes[i].send(everyone)
    return [outcomes[i] for i in range(len(pipes))]


def _device(slot: Slot, change: Change, pipe: Connection) -> None:
    socket.socket = Counter  # type: ignore[misc]

    def exchange(group: str, data: bytes) -> Sequence[bytes]:
        pipe.send((group, data))
        answer: Sequence[bytes] = pipe.recv()
        return answer

    pipe.send(("outcome", _change(slot, change, exchange)))


def _change(slot: Slot, change: Change, exchange: Callable[[str, bytes], Sequence[bytes]]) -> _DeviceOutcome:
    """This device's part: its old memory stays served until all have theirs."""
    outcome = _DeviceOutcome()
    memory = change.memory_before(slot)
    alone = len(change.phases) > 1  # the first phase is that of the center only
    for number, plan in enumerate(change.phases):
        final = plan is change.phases[-1]
        with ExitStack() as stack:
            servers = _serve(slot, memory, stack, partial(exchange, EVERYONE))
            outcome.servers.update({address: at for at, address in servers.items()})
            Counter.reset()
            if number == 0:
                exchange(EVERYONE, b"")
                outcome.started, outcome.cpu = time.perf_counter(), -time.process_time()
            new: Memory = {}
            if slot in plan.target.slots:
                rank, slots = plan.target.slots.index(slot), plan.target.slots
                meet = (lambda data: [data]) if alone and not final else partial(exchange, NEW)
                room = [shared.room(shared.FOLDER)] * len(slots)
                group = LoadGroup(rank=rank, slots=slots, exchange=meet, room=room)
                wanted = partition(plan.target, change.metas)
                old = OldMemories(addresses=servers, own=memory, secret=SECRET)
                loaded = collective_load.carry_out(plan.pieces, change.metas, wanted, group, old, None, print)
                new = {name: (Part(wanted[rank][name], tensor),) for name, tensor in loaded.tensors.items()}
                outcome.filled.append(loaded.received.by_link)
                _require_all(loaded.received, plan, rank)
            if final:
                outcome.ended, outcome.cpu = time.perf_counter(), outcome.cpu + time.process_time()
            exchange(EVERYONE, b"")  # the servers outlive the fetching
            outcome.taken.append(Counter.reset())
        memory = new
    _check(slot, change, memory)
    return outcome


def _serve(
    slot: Slot, memory: Memory, stack: ExitStack, exchange: Callable[[bytes], Sequence[bytes]]
) -> dict[Slot, Address]:
    """Serve what this device holds; where everyone does."""
    port = stack.enter_context(RangeServer(memory, SECRET)).address[1] if memory else 0
    lines = [line.decode().split() for line in exchange(f"{slot.node} {slot.index} {port}".encode())]
    return {Slot(node, int(index), "cpu"): ("127.0.0.1", int(at)) for node, index, at in lines if int(at)}


def _require_all(received: Received, plan: Plan, rank: int) -> None:
    """What was filled is what the plan says."""
    want = dict.fromkeys(Link, 0)
    for piece in plan.pieces_of(rank):
        want[piece.link] += piece.num_bytes
        want[Link.HOST] += piece.num_bytes * (len(piece.targets) - 1)
    assert received.by_link == want, (rank, received.by_link, want)


def _check(slot: Slot, change: Change, memory: Memory) -> None:
    """Every tensor bit for bit."""
    if slot not in change.target.slots:
        return
    boxes = partition(change.target, change.metas)[change.target.slots.index(slot)]
    assert memory.keys() == boxes.keys()
    for name, box in boxes.items():
        (part,) = memory[name]
        assert torch.equal(part.tensor, change.state[name][box.slices()]), (slot, name)


def _moves(change: Change, devices: Sequence[Slot], outcomes: Sequence[_DeviceOutcome]) -> tuple[Moves, ...]:
    """Bytes by (from, to): what came through sockets, and what a fetcher copied into its host's shared memory."""
    phases = []
    for number, plan in enumerate(change.phases):
        moves: defaultdict[tuple[Slot, Slot], int] = defaultdict(int)
        for slot, device in zip(devices, outcomes, strict=True):
            for address, size in device.taken[number].items():
                if address in device.servers:  # else a request, to this device's own server
                    moves[device.servers[address], slot] += size
        slots = plan.target.slots
        for piece in plan.pieces:
            for rank in piece.targets:
                if rank != piece.fetcher:
                    moves[slots[piece.fetcher], slots[rank]] += piece.num_bytes
        phases.append(dict(moves))
    return tuple(phases)
