"""What it means that another rank has not taken part in an exchange in time.

A process group gives up after its own timeout (ten minutes in jobs, `attach`'s `patience_seconds` in plain torch), with
an error that names a buffer. Here it says what was waited for, and what may be wrong. A rank whose process ends is
noticed at once, since its connections close; this is for one that lives and does not come.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_TIMED_OUT = "Timed out waiting"  # gloo's words


class RankSilent(RuntimeError):
    """Another rank did not take part in an exchange within the process group's timeout."""


def explained(error: Exception, what: str) -> Exception:
    """The same error, or what it means where the group has given up waiting."""
    if isinstance(error, RankSilent) or not isinstance(error, RuntimeError) or _TIMED_OUT not in str(error):
        return error
    return RankSilent(
        f"{what}: another rank did not take part in time. It hangs, computes for longer than that, has left the loop, "
        f"or takes other steps than this one. {error}"
    )


@contextmanager
def in_time(what: str) -> Iterator[None]:
    """Raises `RankSilent` in the place of torch's error for a rank that did not come."""
    try:
        yield
    except RuntimeError as error:
        meant = explained(error, what)
        if meant is error:
            raise
        raise meant from error
