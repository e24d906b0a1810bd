"""One worker process: `python -m elastic_core.train.process.worker --run-dir D --rank R`, one a slot, started by the
agent.

Heartbeats start before torch is imported, so that the ledger hears of the processes while they still load. The
exit code says how it ended (`host.exits`); an error goes to `error-rank<R>.json` in the run dir.

A process outlives resizes that leave it its slot: it forms another group with those who are there then, and restarts
the task from the checkpoint just committed, as a new process would.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core import logs
from elastic_core.crashing import crash_here
from elastic_core.domain import Slot
from elastic_core.host.exits import ExitCode, exit_code
from elastic_core.host.messages import ServingState, WorkerError, WorkerSettings
from elastic_core.host.network.interfaces import LOOPBACK
from elastic_core.host.network.unix_sockets import name_for_life
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.protocol.trainer import TrainerControl
from elastic_core.train.lease.lease_heartbeat import Connect
from elastic_core.train.lease.lease_holder import LeaseHolder
from elastic_core.train.lease.standby_workers import wait_for_order
from elastic_core.train.lease.stop_requests import StopRequest, StopRequests
from elastic_core.train.process.hang_watch import HangWatch

if TYPE_CHECKING:
    import torch

    from elastic_core.train.checkpoint.kept_state import KeptState

_STARTED = time.perf_counter()
_PATIENCE_SECONDS = 5.0  # of the client; the heartbeat goes on asking by itself
_log = logging.getLogger("elastic_core.train.process.worker")  # by name: the module runs as __main__


def process_main(argv: Sequence[str], started: float | None = None) -> int:
    """A worker that is its process. `started` as for `main`: a fork server's loaded this module before it began."""
    return main(argv, standalone=True, started=started)


def main(
    argv: Sequence[str], *, connect: Connect | None = None, standalone: bool = False, started: float | None = None
) -> int:
    """Train until this process should end; its exit code.

    `standalone`: this process is ours alone, so it may be ended at once when the lease is over. In the caller's
    process (debug launcher) training ends at its next step instead. `connect` replaces the HTTP client. `started`: when
    the process began, by `time.perf_counter`; now, if it is None.
    """
    started = time.perf_counter() if started is None else started
    parser = argparse.ArgumentParser(prog="elastic_core.train.process.worker", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the process group")
    parser.add_argument("--rank", type=int, required=True, help="index of this worker's slot in the allocation")
    parser.add_argument("--slot", help="NODE:INDEX; wait until this slot is the group's. --rank is a number only, then")
    parser.add_argument("--address", default=LOOPBACK, help="of this node: where the other ranks reach this one")
    parser.add_argument("--control-socket", type=Path, help="Unix socket that leads to the control API")
    options = parser.parse_args(argv)
    run_dir, number = RunDir(options.run_dir), options.rank
    if standalone or not _log.hasHandlers():  # else the caller's logging holds
        logs.configure("worker")
    try:
        with _sigterm(stop_requests := StopRequests()):
            place = _Place(run_dir, number, options.address, options.control_socket, connect, standalone)
            if options.slot is None:
                _train(place, stop_requests, started)
            else:
                _join(place, options.slot, stop_requests)
    except KeyboardInterrupt as error:
        if not standalone:
            raise  # somebody sits in front of the debug launcher
        return _report(run_dir, number, error)
    except BaseException as error:  # noqa: BLE001 - every end of a worker becomes an exit code and a file
        return _report(run_dir, number, error)
    return ExitCode.DONE


@dataclass(frozen=True, slots=True)
class _Place:
    """What this process was started with."""

    run_dir: RunDir
    number: int
    address: str
    control_socket: Path | None
    connect: Connect | None
    standalone: bool

    def holder(self, settings: WorkerSettings, stop_requests: StopRequests) -> LeaseHolder:
        return LeaseHolder(
            self.run_dir,
            self.connect or _client(settings, self.control_socket),
            stop_requests,
            on_lost=_end_process if self.standalone else _log.error,
            resizable=self.standalone,
        )

    def trainer(
        self, slot: Slot, entry: Any, settings: WorkerSettings, stop_requests: StopRequests, holder: LeaseHolder
    ) -> _Trainer:
        return _Trainer(
            self.run_dir, self.number, slot, self.address, entry, settings, stop_requests, holder, self.standalone
        )


def _train(place: _Place, stop_requests: StopRequests, started: float) -> None:
    rank = place.number
    order = place.run_dir.order()
    settings = place.run_dir.require(WorkerSettings)
    holder = place.holder(settings, stop_requests)
    if rank == 0:
        holder.open(order)
    try:
        entry = _load(place.run_dir, order, settings, place.standalone)
        place.trainer(order.allocation.slots[rank], entry, settings, stop_requests, holder).train(order, started)
    finally:
        holder.close()


def _join(place: _Place, slot_name: str, stop_requests: StopRequests) -> None:
    """Load everything, wait to be needed, and take part from then on."""
    settings = place.run_dir.require(WorkerSettings)
    entry = _load(place.run_dir, place.run_dir.order(), settings, standalone=True)
    joined = wait_for_order(place.run_dir, place.number, slot_name, stop_requests)
    if joined is None:
        return
    order, slot = joined
    holder = place.holder(settings, stop_requests)
    try:
        place.trainer(slot, entry, settings, stop_requests, holder).train(order, time.perf_counter())
    finally:
        holder.close()


def _load(run_dir: RunDir, order: LaunchOrder, settings: WorkerSettings, standalone: bool) -> Any:
    """The job's entry point, and all that running it needs. Takes a second and more: only after the first heartbeat."""
    from elastic_core.spec import entry_points
    from elastic_core.train.process import lazy_dynamo

    import_module("elastic_core.train.entry")
    if standalone:
        lazy_dynamo.install()
    entry_points.reach(settings.project)
    if run_dir.code.exists():
        entry_points.reach(run_dir.code)
    return entry_points.load(order.spec.entry_point, settings.tasks)


@dataclass(frozen=True, slots=True)
class _Trainer:
    """This process's part in its group; `number` names its files."""

    run_dir: RunDir
    number: int
    slot: Slot
    address: str  # of this node
    entry: Any
    settings: WorkerSettings
    stop_requests: StopRequests
    lease: LeaseHolder
    standalone: bool

    def train(self, order: LaunchOrder, started: float) -> None:
        """Under this order, and restart under each that resizes the group, as long as it names our slot."""
        device = _device(self.slot.type)
        next_order: LaunchOrder | None = order
        kept: KeptState | None = None
        leased_from = 0.0
        while next_order is not None and self.slot in next_order.allocation.slots:
            if next_order is not order:
                crash_here("resize.left")
                gc.collect()  # model and process group hold each other: free their memory before the next ones
                self.lease.follow(next_order, self.slot, leased_from)
            next_order, kept, leased_from = self._session(next_order, device, started, kept)
            started = time.perf_counter()
        if next_order is not None:
            self._leave(kept, next_order.allocation.slots)

    def _hangs(self, why: str) -> None:
        """No cleaning up, which could hang. Where the process is not ours alone it is only said."""
        _log.error(why)
        if self.standalone:
            self.run_dir.write(WorkerError(why, why), self.number)
            os._exit(ExitCode.INFRASTRUCTURE)

    def _say_serving(self) -> None:
        """Tell the agent why this process, which leaves the group, does not end yet: finding out what it holds that the
        others need takes seconds of a large state, and they wait for it."""
        self.run_dir.write(ServingState(*ProcessId.current(), f"{self.slot.node}:{self.slot.index}"), self.number)

    def _leave(self, kept: KeptState | None, slots: Sequence[Slot]) -> None:
        """Stay until the others have what only this process holds."""
        if kept is not None:
            crash_here("resize.serving")
            if kept.needed(slots):
                kept.wait_until_taken()
            kept.close()
        self.run_dir.delete(ServingState, self.number)

    def _session(
        self, order: LaunchOrder, device: torch.device, started: float, kept: KeptState | None
    ) -> tuple[LaunchOrder | None, KeptState | None, float]:
        """Restore, train, commit. Gives the order to restart under, if there is one, what is kept for it, and since
        when its lease holds."""
        from elastic_core.state.memory_tier.cache_client import Access
        from elastic_core.state.memory_tier.cached_store import MemoryTier, TieredStore
        from elastic_core.state.store_access.brokered_store import open_for_job
        from elastic_core.state.store_access.store_grants import StoreAccess
        from elastic_core.train.entry import run
        from elastic_core.train.parallel.group import Group
        from elastic_core.train.session import Session
        from elastic_core.train.steps.runtime_context import RuntimeContext

        if kept is None:  # nothing of a session before is left
            gc.freeze()  # as the fork server's is, what was loaded since is not looked through at each resize
        slots, settings = order.allocation.slots, self.settings
        rank = slots.index(self.slot)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(len(slots)))
        group = Group.form(self.run_dir, rank, len(slots), device, order.epoch, self.address)
        store = open_for_job(settings.store, settings.s3_endpoint, self.run_dir.read(StoreAccess))
        access = self.run_dir.read(Access)
        memory = None
        if access is not None:
            copies = order.spec.checkpoints.memory_copies
            memory = MemoryTier(access, self.slot.node, copies, reread=lambda: self.run_dir.read(Access))
        watch = HangWatch(settings.hang_seconds, self._hangs)
        session = Session(
            RuntimeContext(
                order=order,
                group=group,
                store=TieredStore(store, memory) if memory is not None else store,
                memory=memory,
                stop_requests=self.stop_requests,
                control_link=self.lease.link,
                started_at=started,
                kept=kept,
                stepped=watch.stepped,
            )
        )
        try:
            run(self.entry, session, order.spec)
        finally:
            watch.close()
        next_order = session.next_order
        if next_order is not None and self.slot not in next_order.allocation.slots:
            self._say_serving()
        keeps = session.keep()
        session.close()
        group.close()
        if memory is not None:
            memory.close()
        return next_order, keeps, session.leased_from


def _device(slot_type: str) -> torch.device:
    """CPU slots get the CPU. The launcher shows a CUDA rank its own device only; otherwise LOCAL_RANK names it."""
    import torch

    if slot_type == "cpu" or not torch.cuda.is_available():
        if slot_type != "cpu":
            _log.warning(
                "the slot is a %s, but torch %s sees no CUDA device, so the CPU trains; "
                "if it should not, does nvidia-smi list the device, and is this torch built for CUDA?",
                slot_type,
                torch.__version__,
            )
        torch.set_num_threads(1)
        return torch.device("cpu")
    index = 0 if torch.cuda.device_count() == 1 else int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _client(settings: WorkerSettings, control_socket: Path | None) -> Callable[[str], TrainerControl]:
    from elastic_core.protocol.http_client import HttpTrainer

    relay = name_for_life(control_socket) if control_socket is not None else None
    return lambda token: HttpTrainer(settings.control_url, token, _PATIENCE_SECONDS, relay)


@contextmanager
def _sigterm(stop_requests: StopRequests) -> Iterator[None]:
    """SIGTERM asks to leave at a boundary. Signals can only be handled on the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stop_requests.request(StopRequest.LEAVE, "SIGTERM"))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(run_dir: RunDir, rank: int, error: BaseException) -> int:
    code = _code(error)
    text = "".join(traceback.format_exception(error))
    last = traceback.format_exception_only(error)[-1].strip()
    _log.log(logging.INFO if code == ExitCode.STOPPED else logging.ERROR, "training ends: %s", last, exc_info=error)
    if code != ExitCode.STOPPED and run_dir.path.exists():
        run_dir.write(WorkerError(last, text), rank)
    return code


def _code(error: BaseException) -> int:
    if "torch" in sys.modules:
        from elastic_core.train.parallel.group import lost_peer

        if lost_peer(error):
            return ExitCode.INFRASTRUCTURE
    return exit_code(error)


def _end_process(why: str) -> None:
    """The lease is over and another may hold the slots' job: no cleaning up, which could hang."""
    _log.error(why)
    os._exit(ExitCode.STOPPED)


if __name__ == "__main__":
    exit_status = process_main(sys.argv[1:], _STARTED)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_status)  # tearing down the interpreter with torch in it takes a third of a second
