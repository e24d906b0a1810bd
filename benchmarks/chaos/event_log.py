"""What happened in a run, a JSON line each, written as it happens: a run that is cut off shows what it did."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any


class EventLog:
    """Lines of {"at": seconds since the run began, "what": ..., ...}. For many threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.began = time.time()
        self._file = path.open("w", buffering=1)
        self._lock = threading.Lock()

    def say(self, what: str, *, show: bool = True, **facts: Any) -> None:
        """`show`: print it as well."""
        line = {"at": round(time.time() - self.began, 2), "what": what, **facts}
        with self._lock:
            self._file.write(json.dumps(line, default=str) + "\n")
            if show:
                told = ", ".join(f"{name} {value}" for name, value in facts.items())
                print(f"{line['at']:7.1f} s  {what}{': ' if told else ''}{told}", flush=True)

    def close(self) -> None:
        self._file.close()
