"""One worker process: `python -m elastic_core.train.worker --run-dir D --rank R`, one a slot, started by the agent.

Heartbeats start before torch is imported, so that the ledger hears of the processes while they still load. The
exit code says how it ended (`train.exits`); an error goes to `error-rank<R>.json` in the run dir.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.control.contract import LaunchOrder, TrainerControl
from elastic_core.launch.rundir import RunDir
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
    options = parser.parse_args(argv)
    run_dir, rank = RunDir(options.run_dir), options.rank
    try:
        with _sigterm(wishes := Wishes()):
            _train(run_dir, rank, connect, wishes, started, standalone)
    except KeyboardInterrupt as error:
        if not standalone:
            raise  # somebody sits in front of the debug launcher
        return _report(run_dir, rank, error)
    except BaseException as error:  # noqa: BLE001 - every end of a worker becomes an exit code and a file
        return _report(run_dir, rank, error)
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
        )
        heart.start()
    try:
        _run(run_dir, rank, order, settings, heart, wishes, started, standalone)
    finally:
        if heart is not None:
            heart.stop()


def _run(
    run_dir: RunDir, rank: int, order: LaunchOrder, settings: dict[str, Any], heart: Heart | None, wishes: Wishes,
    started: float, standalone: bool,
) -> None:  # fmt: skip
    import torch  # a second and more: after the first heartbeat

    from elastic_core.spec import entry_points
    from elastic_core.state.stores import open_store
    from elastic_core.train import lazy_dynamo
    from elastic_core.train.entry import run
    from elastic_core.train.group import Group
    from elastic_core.train.segments import Surroundings
    from elastic_core.train.session import Session

    if standalone:
        lazy_dynamo.install()
    project = str(settings["project"])
    if project not in sys.path:
        sys.path.insert(0, project)
    device = _device(order.allocation.slots[rank].type)
    if device.type == "cpu":
        torch.set_num_threads(1)
    group = Group.form(run_dir, rank, order.allocation.num_slots, device)
    session = Session(
        Surroundings(
            order=order,
            group=group,
            store=open_store(settings["store"], endpoint=settings.get("s3_endpoint", "")),
            wishes=wishes,
            heart=heart,
            started_at=started,
        )
    )
    run(entry_points.load(order.spec.entry_point, settings["tasks"]), session, order.spec)
    session.close()
    group.close()


def _device(slot_type: str) -> torch.device:
    """CPU slots get the CPU. The launcher shows a CUDA rank its own device only; otherwise LOCAL_RANK names it."""
    import torch

    if slot_type == "cpu" or not torch.cuda.is_available():
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
