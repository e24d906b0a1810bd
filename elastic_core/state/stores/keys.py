"""What a key of a store may be, the same for every store: relative, '/'-separated, nothing hidden, no way out.

So that no key that reaches a store, whoever sent it, can name a file outside of it.
"""

from __future__ import annotations

from elastic_core.errors import UserError


def is_key(key: str) -> bool:
    return all(part and not part.startswith(".") and "\\" not in part and part.isprintable() for part in key.split("/"))


def check_key(key: str) -> str:
    """The key itself. Raises `UserError` for one that is empty, absolute, hidden or could leave the store."""
    if not is_key(key):
        raise UserError(
            f"{key!r} is not a key of a checkpoint store: a key is relative, its parts are separated by '/', and "
            "no part is empty, starts with '.', or holds a backslash or a control character."
        )
    return key


def check_prefix(prefix: str) -> str:
    """A prefix without its trailing '/'; "" stands for the whole store."""
    trimmed = prefix.removesuffix("/")
    return check_key(trimmed) if trimmed else ""
