"""Starts worker processes fast: forked from a server that has torch loaded already. They are real processes."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.train.preloaded"])


def start(target: Callable[..., int], *arguments: Any, log: Path) -> BaseProcess:
    """A process that ends with the exit code that `target` gives."""
    process = _CONTEXT.Process(target=_main, args=(target, arguments, log), daemon=True)
    process.start()
    return process


def join(processes: list[BaseProcess], seconds: float = 60.0) -> list[int]:
    """Exit codes; kills whoever is not done in time."""
    for process in processes:
        process.join(seconds)
    for process in processes:
        if process.exitcode is None:
            process.kill()
            process.join()
    return [process.exitcode if process.exitcode is not None else -9 for process in processes]


def _main(target: Callable[..., int], arguments: tuple[Any, ...], log: Path) -> None:
    file = log.open("a")
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = file
    code = 99
    try:
        code = target(*arguments)
    except BaseException:  # noqa: BLE001 - goes to the log and the exit code
        traceback.print_exc()
    file.flush()
    os._exit(code)
