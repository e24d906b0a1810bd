"""The files by which launcher, agent and workers of one host tell each other things: each a frozen dataclass.

Keys and file names stand here alone, and are frozen: a group that runs outlives an upgrade of its launcher. A reader
ignores keys that it does not know. `host.rundir` reads and writes the files, whole or not at all. Standard library
only, since the agent imports this and must stay small. Four messages live with what they carry: order.json is a
`protocol.process_groups.LaunchOrder` (here only what an agent reads of it), exit.json an `ExitReport`, memory.json a
`state.memory_tier.cache_client.Access`, store.json a `state.store_access.store_grants.StoreAccess`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from elastic_core.host.process import ProcessId

ORDER, SETTINGS, EXIT = "order.json", "settings.json", "exit.json"


class Message:
    """A file. Subclasses are frozen dataclasses whose fields are its keys.

    Fields are str, int, float, bool, `Path` (as text), bytes (in hexadecimal), tuples of these, dicts from str, and
    dataclasses. `{}` in `FILE` stands for a worker's number or a node's name.
    """

    FILE: ClassVar[str]
    BY_WORKERS: ClassVar[bool] = False  # others come from the folder's owner, or not at all
    BARE: ClassVar[str] = ""  # the only field, where the file holds its value instead of an object


M = TypeVar("M", bound=Message)


class Malformed(ValueError):
    """What a file holds is not what its reader expects; the text names the field."""


@dataclass(frozen=True, slots=True)
class SlotId:
    """A slot: `domain.Slot` without pydantic. As text "node:index"."""

    node: str
    index: int
    type: str

    def __str__(self) -> str:
        return f"{self.node}:{self.index}"


@dataclass(frozen=True, slots=True)
class _ProcessMessage(Message):
    pid: int
    start_time: int  # clock ticks since boot: see `ProcessId`

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.pid, self.start_time)


@dataclass(frozen=True, slots=True)
class AgentProcess(_ProcessMessage):
    """The agent, once it can be signalled. Written by itself."""

    FILE = "agent.json"


@dataclass(frozen=True, slots=True)
class CoordinatorProcess(_ProcessMessage):
    """The coordinator of a group, where there is one, on the node that it runs on; {} is the group's origin epoch.
    Written by itself."""

    FILE = "coordinator-{}.json"


@dataclass(frozen=True, slots=True)
class WorkerProcess(_ProcessMessage):
    """One living worker, or one of which something may be left."""

    slot: str  # "node:index"
    host: str = ""  # node in whose process table it is, which says itself who lives; "" for this host

    def alive(self) -> bool:
        """What comes of another node is taken away once it is not true any more."""
        return bool(self.host) or self.process.alive()


@dataclass(frozen=True, slots=True)
class WorkerProcesses(Message):
    """The workers of the group, in the order of their start. Written by the agent."""

    FILE = "workers.json"
    BARE = "workers"
    workers: tuple[WorkerProcess, ...]


@dataclass(frozen=True, slots=True)
class NodeWorkers(WorkerProcesses):
    """The same of another node's agent; {} is the node. Written by the node's actor (`launch.on_ray`)."""

    FILE = "workers@{}.json"


@dataclass(frozen=True, slots=True)
class CoordinatorHeard(Message):
    """When the coordinator of a group over several nodes last spoke to this one. Written by the node's actor."""

    FILE = "heard.json"
    at: float  # seconds of this host's CLOCK_MONOTONIC


@dataclass(frozen=True, slots=True)
class WorkersByRank(Message):
    """Numbers of the workers that have, or had last, rank 0, 1, ...: which log is whose. Written by the agent."""

    FILE = "ranks.json"
    BARE = "numbers"
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StandbyReady(WorkerProcess):
    """A standby worker that has loaded its code and waits for its slot. Written by itself; {} is its number."""

    FILE, BY_WORKERS = "waiting-{}.json", True


@dataclass(frozen=True, slots=True)
class ServingState(WorkerProcess):
    """A worker that has left the group, which takes from it what it holds, or may do so yet. Written by itself; {} is
    its number."""

    FILE, BY_WORKERS = "serving-{}.json", True


@dataclass(frozen=True, slots=True)
class LeaseHeld(_ProcessMessage):
    """Until when the group's lease is known to hold, while rank 0 renews it. Written by that process."""

    FILE, BY_WORKERS = "lease.json", True
    until: float  # seconds of this host's CLOCK_MONOTONIC


@dataclass(frozen=True, slots=True)
class StandbyRequest(Message):
    """Slots for which the agent shall start standby workers (`train.lease.standby_workers`). Written by rank 0."""

    FILE, BY_WORKERS = "wanted.json", True
    request: int  # counts the requests
    slots: tuple[SlotId, ...]


@dataclass(frozen=True, slots=True)
class OrderAllocation:
    slots: tuple[SlotId, ...]  # by rank


@dataclass(frozen=True, slots=True)
class OrderInForce(Message):
    """What an agent reads of the `LaunchOrder`, which rank 0 replaces when the lease passes to the next segment."""

    FILE, BY_WORKERS = ORDER, True
    segment_id: str
    epoch: int
    allocation: OrderAllocation

    @property
    def slots(self) -> tuple[SlotId, ...]:
        return self.allocation.slots


@dataclass(frozen=True, slots=True)
class WorkerSettings(Message):
    """What agents and workers read of the settings, which the launcher writes (`host.environment.worker_settings`)."""

    FILE = SETTINGS
    project: Path
    store: str  # URL or absolute path
    tasks: str  # modules that may hold tasks
    control_url: str = ""
    s3_endpoint: str = ""
    hang_seconds: float = 0.0  # without a step, after which a worker ends itself; 0: never


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """Where a node's workers are on the network, if that is not loopback."""

    address: str
    namespace: str = ""  # that they enter first; "" for none


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnPlan(Message):
    """What the agent runs for each slot. Written by the launcher."""

    FILE = "spawn.json"
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    grace_seconds: float  # that workers have to end once asked, if stop.json says nothing else
    cpu_slots: tuple[tuple[str, int, str], ...]  # of this host, as node, index, type
    user: tuple[int, ...] = ()  # uid and gid that workers have; () for the agent's
    networks: dict[str, NodeNetwork] = field(default_factory=dict)  # by node; without those on loopback
    log_bytes: int = 0  # that what a worker printed may take on disk, the oldest of it is let go then; 0: no limit
    node: str = ""  # whose slots are this agent's, of a group with an agent on each of its nodes; "": all slots
    silence_seconds: float = 0.0  # of the coordinator (`CoordinatorHeard`), after which workers are ended; 0: any


@dataclass(frozen=True, slots=True)
class GroupStop(Message):
    """How long the workers may take to end, once asked. Written by the launcher; before the agent has come up, too."""

    FILE = "stop.json"
    grace_seconds: float
    kill_at: float  # end of the grace, by `SteadyClock`
    before_agent: bool = False  # nothing had come up that could have ended by then


@dataclass(frozen=True, slots=True)
class WorkerError(Message):
    """The error that ended a worker. Written by itself; {} is its number."""

    FILE, BY_WORKERS = "error-rank{}.json", True
    error: str  # last line of the traceback
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Rendezvous(Message):
    """The way to the store by which the ranks of this generation's group find each other. Written by rank 0."""

    FILE, BY_WORKERS = "rendezvous.json", True
    socket: str  # name of a Unix socket in the run dir; "" where host and port say it
    token: bytes  # of this group alone: `train.parallel.group_store`
    generation: int
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheServerAddress(_ProcessMessage):
    """How to reach the cache server of a node; {} is the node. Lies in the cache servers' folder, not in a run dir."""

    FILE = "{}.json"
    socket: str  # name of its abstract Unix socket
    host: str
    port: int

    @classmethod
    def of(cls, process: ProcessId, **address: Any) -> Self:
        return cls(pid=process.pid, start_time=process.start_time, **address)


@dataclass(frozen=True, slots=True)
class ForkServerProcess(_ProcessMessage):
    """The fork server of a home. Lies in its own folder (`host.fork_client`), not in a run dir."""

    FILE = "process.json"


@dataclass(frozen=True, slots=True)
class AccessBrokerProcess(_ProcessMessage):
    """The access broker of a home. Lies in its own folder (`state.store_access.access_brokers`), not in a run dir."""

    FILE = "process.json"


def encode(message: Message) -> Any:
    """What the file holds, as plain JSON values."""
    value: Any = asdict(message)  # type: ignore[call-overload]
    return _plain(value[message.BARE] if message.BARE else value)


def decode(kind: type[M], value: Any) -> M:
    """The message that the file's JSON value is. Raises `Malformed`."""
    message: M = _decode(kind, {kind.BARE: value} if kind.BARE else value, "")
    return message


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, Path) else value


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, Any, bool], ...]:
    """Name, type and whether it must be there, of each field of a dataclass."""
    types = get_type_hints(kind)
    return tuple(
        (known.name, types[known.name], known.default is MISSING and known.default_factory is MISSING)
        for known in fields(kind)
    )


def _decode_object(kind: Any, given: Mapping[str, Any], at: str) -> Any:
    values = {}
    for name, of, required in _fields(kind):
        where = f"{at}.{name}" if at else name
        if name in given:
            values[name] = _decode(of, given[name], where)
        elif required:
            raise Malformed(f"the field {where!r} is missing")
    return kind(**values)


def _decode(kind: Any, value: Any, at: str) -> Any:
    """`value` as a `kind`; `at` says which field of the file it is ("" for the file itself)."""
    arguments = get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return _decode_object(kind, _of_type(dict, value, at), at)
    if get_origin(kind) is tuple:
        items = _of_type(list, value, at)
        kinds = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else arguments
        if len(items) != len(kinds):
            raise Malformed(f"the field {at!r} has {len(items)} entries instead of {len(kinds)}")
        return tuple(_decode(of, item, f"{at}[{i}]") for i, (of, item) in enumerate(zip(kinds, items, strict=True)))
    if get_origin(kind) is dict:
        return {key: _decode(arguments[1], item, f"{at}.{key}") for key, item in _of_type(dict, value, at).items()}
    if kind is Path:
        return Path(_of_type(str, value, at))
    if kind is bytes:
        try:
            return bytes.fromhex(_of_type(str, value, at))
        except ValueError:
            raise Malformed(f"the field {at!r} is not in hexadecimal") from None
    return float(value) if kind is float and type(value) is int else _of_type(kind, value, at)


_NAMES = {dict: "an object", list: "a list", str: "a string", int: "an integer", float: "a number", bool: "a boolean"}


def _of_type(kind: type[Any], value: Any, at: str) -> Any:
    if type(value) is not kind:  # not isinstance: a bool is no int here
        what = f"the field {at!r}" if at else "it"
        # What is in an object or a list may be a secret, and this text goes to the ledger.
        seen = _NAMES[type(value)] if isinstance(value, dict | list) else f"{value!r:.80}"
        raise Malformed(f"{what} is {seen} instead of {_NAMES[kind]}")
    return value
