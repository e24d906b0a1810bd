"""Words for people, the same everywhere: spans of time, plurals, near misses, the end of a log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from secrets import token_hex

_TAIL_BYTES = 64 * 1024
_CONTROLS = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # all but line feed, tabulator and carriage return
_CONTROLS_BUT_COLOURS = re.compile(rf"(?!\x1b\[[0-9;]*m){_CONTROLS.pattern}")
_NOT_STORABLE = re.compile("[\0\ud800-\udfff]")


def span(seconds: float) -> str:
    """A span of time to read: "0.4 s", "12 s", "3 min", "2 h 05 min", "3 d 4 h". Negative ones count as none.

    "-" for what is not finite.
    """
    if not isfinite(seconds):
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def stamped(name: str, now: datetime | None = None) -> str:
    """An id for who gives none: a name, the time (UTC), and what keeps apart those of one second."""
    return f"{name}-{now or datetime.now(UTC):%Y%m%d-%H%M%S}-{token_hex(2)}"


def figure_of_time(seconds: float) -> str:
    """A span of time to compare: "850 ms", "59.9 s", "12.3 min", "4.56 h": three digits. "-" for what is not finite."""
    if not isfinite(seconds):
        return "-"
    if abs(seconds) < 1.0:
        return f"{1000 * seconds:.3g} ms"
    if abs(seconds) < 600.0:
        return f"{seconds:.3g} s"
    if seconds < 3600.0:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.2f} h" if seconds < 4 * 86400.0 else f"{seconds / 86400:.2f} d"


def size_text(num_bytes: int) -> str:
    """E.g. "12.0 MiB"."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(count: int, noun: str, several: str = "") -> str:
    """ "1 job", "2 jobs"; `several` where that is not the noun with an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"


def near_miss(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that somebody who wrote `name` may have meant. `cutoff`: how alike they must be, 0 to 1."""
    near = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return near[0] if near else None


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """ " Did you mean 'x'?", to be put behind a sentence; "" where nothing known is like `name`."""
    near = near_miss(name, known, cutoff)
    return f" Did you mean {near!r}?" if near else ""


def shortened(text: str, most: int) -> str:
    """The text, or its beginning where it has more than so many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def storable(text: str) -> str:
    """The text with U+FFFD for what no database stores: NUL, and halves of surrogate pairs."""
    return _NOT_STORABLE.sub("\ufffd", text)


def printable(text: str, *, colours: bool = False) -> str:
    """The text with U+FFFD for control characters: a terminal obeys whoever wrote them. `colours` may stay."""
    return (_CONTROLS_BUT_COLOURS if colours else _CONTROLS).sub("\ufffd", text)


def tail(path: Path, lines: int, max_bytes: int = _TAIL_BYTES) -> str:
    """The last lines of a text file, of which at most the last `max_bytes` are read; "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - max_bytes))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
