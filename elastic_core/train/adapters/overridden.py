"""What a script has written of its own where a library's loop would call it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from elastic_core.errors import UserError


def package_of(written: Any) -> str:
    """That a class or a function is from; "" of what says none."""
    return str(getattr(written, "__module__", "")).split(".")[0]


def has_own(thing: Any, method: str, library: Collection[str]) -> bool:
    """Whether the script has written it, and it is not the library's."""
    written = getattr(type(thing), method, None)
    return callable(written) and package_of(written) not in library


def own_of_library(thing: Any, library: Collection[str]) -> set[str]:
    """The methods of the library's classes that the script has written anew."""
    known = {name for kind in type(thing).__mro__ if package_of(kind) in library for name in vars(kind)}
    return {name for name in known if has_own(thing, name, library)}


def refuse_left_out(whose: str, names: Collection[str], ignore: Collection[str], decorator: str) -> None:
    """Raises `UserError` for what the platform's loop leaves out, unless the job is said to do without it."""
    left_out = tuple(name for name in names if name not in ignore)
    if left_out:
        raise UserError(
            f"{whose} brings {', '.join(left_out)}, which the library's own loop calls and the platform's does not: "
            "the job would train another thing than the script. Write it another way (docs/guide/your-model.md) or, "
            f"if the job can do without, say @{decorator}(ignore={(*ignore, *left_out)!r})."
        )
