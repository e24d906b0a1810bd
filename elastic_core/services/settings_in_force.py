"""With which settings the services of a home run: recorded when their supervisor starts, compared when it runs already.

A service reads its settings once, at its start: a change of them is in force after a restart of all services.
Addresses of databases, which may hold passwords, are no part of it: they are in secret files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

PREFIX = "ELASTIC_"
NOT_COMPARED = frozenset({"ELASTIC_HOME"})  # it says which record to look at


def record(home: Path, environment: Mapping[str, str]) -> None:
    """`environment`: what the services are started with."""
    file = _file(home)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_settings(environment), indent=1, sort_keys=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as opened:
        opened.write(text)


def recorded(home: Path) -> dict[str, str]:
    """By variable; {} where nothing was recorded, or it cannot be read as such."""
    try:
        known = json.loads(_file(home).read_text())
    except (OSError, ValueError):
        return {}
    return _settings({name: str(value) for name, value in known.items()}) if isinstance(known, dict) else {}


def differences(home: Path, environment: Mapping[str, str]) -> list[str]:
    """What is set otherwise now, in words, by name; [] where nothing is, or nothing was recorded."""
    before, now = recorded(home), _settings(environment)
    if not before:
        return []
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return [f"{name}: {_shown(before.get(name))} -> {_shown(now.get(name))}" for name in names]


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(PREFIX) and name not in NOT_COMPARED}


def _shown(value: str | None) -> str:
    return "not set" if value is None else value or "''"


def _file(home: Path) -> Path:
    return home.absolute() / "services" / "settings.json"
