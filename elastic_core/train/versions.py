"""What training runs on, by versions: Python's, and those of the packages that this process has loaded.

Written with each checkpoint, so that a resume on another environment is said, by the packages that are others.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping

PYTHON = "python"


def loaded_versions() -> dict[str, str]:
    """By package, of those that say their version and are no part of Python."""
    found = {PYTHON: platform.python_version()}
    for name, module in list(sys.modules.items()):
        version = getattr(module, "__dict__", {}).get("__version__")  # not by what a module does to be asked
        if "." not in name and name not in sys.stdlib_module_names and isinstance(version, str):
            found[name] = version
    return dict(sorted(found.items()))


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """In words, of what both name: what only one of them has loaded says nothing."""
    return tuple(f"{name} {before[name]} -> {now[name]}" for name in sorted(before.keys() & now.keys())
                 if before[name] != now[name])  # fmt: skip
