"""One worker process: `python -m elastic_core.train.worker --run-dir D --rank R`, one a slot, started by the agent.

Heartbeats start before torch is imported, so that the ledger hears of the processes while they still load. The
exit code says how it ended (`train.exits`); an error goes to `error-rank<R>.json` in the run dir.

A process outlives resizes that leave it its slot: it forms another group with those who are there then, and begins the
task anew from the checkpoint just committed, as a new process would.
"""

from __future__ import annotations

import argparse
import gc
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

from elastic_core.control.contract import LaunchOrder, TrainerControl
from elastic_core.crashing import crash_here
from elastic_core.domain import Slot
from elastic_core.launch.rundir import RunDir
from elastic_core.train.crew import Crew, wait_for_order
from elastic_core.train.exits import DONE, STOPPED, exit_code
from elastic_core.train.heartbeat import Connect, Heart, Wish, Wishes

if TYPE_CHECKING:
    import torch

_STARTED = time.perf_counter()
_PATIENCE_SECONDS = 5.0  # of the client; the heartbeat goes on asking by itself


def main(argv: Sequence[str], *, connect: Connect | None = None, standalone: bool = False) -> int:
    """Train until this process should end; its exit code.

    `standalone`: this process is ours alone, so it may be ended at once when the lease is over. In the caller's
    process (debug launcher) training ends at its next step instead. `connect` replaces the HTTP client.
    """
    started = _STARTED if standalone else time.perf_counter()
    parser = argparse.ArgumentParser(prog="elastic_core.train.worker", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the process group")
    parser.add_argument("--rank", type=int, required=True, help="index of this worker's slot in the allocation")
    parser.add_argument("--slot", help="NODE:INDEX; wait until this slot is the group's. --rank is a number only, then")
    options = parser.parse_args(argv)
    run_dir, number = RunDir(options.run_dir), options.rank
    try:
        with _sigterm(wishes := Wishes()):
            if options.slot is None:
                _train(run_dir, number, connect, wishes, started, standalone)
            else:
                _join(run_dir, number, options.slot, wishes)
    except KeyboardInterrupt as error:
        if not standalone:
            raise  # somebody sits in front of the debug launcher
        return _report(run_dir, number, error)
    except BaseException as error:  # noqa: BLE001 - every end of a worker becomes an exit code and a file
        return _report(run_dir, number, error)
    return DONE


def _train(
    run_dir: RunDir, rank: int, connect: Connect | None, wishes: Wishes, started: float, standalone: bool
) -> None:
    order = run_dir.order()
    settings = run_dir.read("settings.json") or {}
    heart = None
    if rank == 0:
        heart = Heart(
            order,
            connect or _client(settings),
            wishes,
            on_lost=_end_process if standalone else _say,
            on_order=run_dir.write_order,
            members=Crew(run_dir) if standalone else None,
        )
        heart.start()
    try:
        entry = _load(order, settings, standalone)
        _Trainer(run_dir, order.allocation.slots[rank], entry, settings, wishes, heart).train(order, started)
    finally:
        if heart is not None:
            heart.stop()


def _join(run_dir: RunDir, number: int, place: str, wishes: Wishes) -> None:
    """Load everything, wait to be needed, and take part from then on."""
    settings = run_dir.read("settings.json") or {}
    entry = _load(run_dir.order(), settings, standalone=True)
    joined = wait_for_order(run_dir, number, place, wishes)
    if joined is not None:
        order, slot = joined
        _Trainer(run_dir, slot, entry, settings, wishes, None).train(order, time.perf_counter())


def _load(order: LaunchOrder, settings: dict[str, Any], standalone: bool) -> Any:
    """The job's entry point, and all that running it needs. Takes a second and more: only after the first heartbeat."""
    from elastic_core.spec import entry_points
    from elastic_core.train import lazy_dynamo

    import_module("elastic_core.train.entry")
    if standalone:
        lazy_dynamo.install()
    entry_points.reach(Path(settings["project"]))
    return entry_points.load(order.spec.entry_point, settings["tasks"])


@dataclass(frozen=True, slots=True)
class _Trainer:
    """This process's part in its group. `heart` is rank 0's."""

    run_dir: RunDir
    slot: Slot
    entry: Any
    settings: dict[str, Any]
    wishes: Wishes
    heart: Heart | None

    def train(self, order: LaunchOrder, started: float) -> None:
        """Under this order, and begin anew under each that resizes the group, as long as it names our slot."""
        device = _device(self.slot.type)
        following: LaunchOrder | None = order
        while following is not None and self.slot in following.allocation.slots:
            if following is not order:
                crash_here("resize.left")
                gc.collect()  # model and process group hold each other: free their memory before the next ones
            following = self._session(following, device, started)
            started = time.perf_counter()

    def _session(self, order: LaunchOrder, device: torch.device, started: float) -> LaunchOrder | None:
        """Restore, train, commit. Gives the order to begin anew under, if there is one."""
        from elastic_core.state.keeper_client import Access
        from elastic_core.state.memory import NodeMemory, StoreWithMemory
        from elastic_core.state.stores import open_store
        from elastic_core.train.entry import run
        from elastic_core.train.group import Group
        from elastic_core.train.segments import Surroundings
        from elastic_core.train.session import Session

        slots, settings = order.allocation.slots, self.settings
        rank = slots.index(self.slot)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(len(slots)))
        group = Group.form(self.run_dir, rank, len(slots), device, generation=order.epoch)
        store = open_store(settings["store"], endpoint=settings.get("s3_endpoint", ""))
        access = self.run_dir.read("memory.json")
        memory = None
        if access is not None:
            memory = NodeMemory(Access.from_json(access), self.slot.node, order.spec.checkpoints.memory_copies)
        session = Session(
            Surroundings(
                order=order,
                group=group,
                store=StoreWithMemory(store, memory) if memory is not None else store,
                memory=memory,
                wishes=self.wishes,
                heart=self.heart,
                started_at=started,
            )
        )
        run(self.entry, session, order.spec)
        session.close()
        group.close()
        if memory is not None:
            memory.close()
        return session.anew


def _device(slot_type: str) -> torch.device:
    """CPU slots get the CPU. The launcher shows a CUDA rank its own device only; otherwise LOCAL_RANK names it."""
    import torch

    if slot_type == "cpu" or not torch.cuda.is_available():
        if slot_type != "cpu":
            _say(
                f"the slot is a {slot_type}, but torch {torch.__version__} sees no CUDA device, so the CPU trains; "
                "if it should not, does nvidia-smi list the device, and is this torch built for CUDA?"
            )
        torch.set_num_threads(1)
        return torch.device("cpu")
    index = 0 if torch.cuda.device_count() == 1 else int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _client(settings: dict[str, Any]) -> Callable[[str], TrainerControl]:
    from elastic_core.control.client import HttpTrainer

    return lambda token: HttpTrainer(settings["control_url"], token, patience_seconds=_PATIENCE_SECONDS)


@contextmanager
def _sigterm(wishes: Wishes) -> Iterator[None]:
    """SIGTERM is a wish to leave at a boundary. Signals can only be handled on the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: wishes.want(Wish.LEAVE, "SIGTERM"))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(run_dir: RunDir, rank: int, error: BaseException) -> int:
    code = _code(error)
    text = "".join(traceback.format_exception(error))
    print(text, file=sys.stderr, flush=True)
    last = traceback.format_exception_only(error)[-1].strip()
    if code != STOPPED and run_dir.path.exists():
        run_dir.write(f"error-rank{rank}.json", {"error": last, "traceback": text})
    return code


def _code(error: BaseException) -> int:
    from elastic_core.train.exits import INFRASTRUCTURE

    if "torch" in sys.modules:
        from elastic_core.train.group import lost_peer

        if lost_peer(error):
            return INFRASTRUCTURE
    return exit_code(error)


def _end_process(why: str) -> None:
    """The lease is over and another may hold the slots' job: no cleaning up, which could hang."""
    _say(why)
    os._exit(STOPPED)


def _say(why: str) -> None:
    print(f"elastic: {why}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    exit_status = main(sys.argv[1:], standalone=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_status)  # tearing down the interpreter with torch in it takes a third of a second
