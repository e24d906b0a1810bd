"""What the machine can do at all with a state of some size: copy it, write it, read it, make memory for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

PAUSE_SECONDS = 3.0  # before new memory is touched: in which a virtual machine may give free memory back to its host


def limits(folder: Path, mib: int, rounds: int) -> dict[str, list[float]]:
    """Seconds for the size of the state; all but the reads from the disk in processor time."""
    raw = np.ones(mib << 20, dtype=np.uint8)
    touched = np.zeros_like(raw)
    path = folder / "limit"
    names = ("memcpy", "write", "write, wall", "read, warm", "read, cold", "new memory, two thirds")
    seconds: dict[str, list[float]] = {name: [] for name in names}

    def read() -> None:
        with open(path, "rb") as file:
            for at in range(0, raw.nbytes, 16 << 20):
                os.preadv(file.fileno(), [touched[at : at + (16 << 20)].data], at)

    def write() -> None:
        with open(path, "wb") as file:
            file.write(raw.data)
            file.flush()
            os.fsync(file.fileno())

    def drop() -> None:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def touch() -> None:
        torch.empty(raw.nbytes * 2 // 3, dtype=torch.uint8)[::4096].fill_(1)

    for _ in range(rounds):
        started = time.perf_counter()
        seconds["write"].append(cpu_of(write))
        seconds["write, wall"].append(time.perf_counter() - started)
        seconds["memcpy"].append(cpu_of(lambda: np.copyto(touched, raw)))
        seconds["read, warm"].append(cpu_of(read))
        drop()
        started = time.perf_counter()
        read()
        seconds["read, cold"].append(time.perf_counter() - started)
        time.sleep(PAUSE_SECONDS)
        seconds[names[-1]].append(cpu_of(touch))
    path.unlink()
    return seconds


def cpu_of(action: Callable[[], object]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started
