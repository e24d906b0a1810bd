"""Finds the installation that a command means, from whatever folder it is called.

In this order: what the environment says (`ELASTIC_HOME`); the nearest folder at or above the current one that holds
`.elastic`; the checkout that this command was installed from. What a folder above says is code and addresses to this
command, so it must be of somebody who is trusted anyway: whoever calls, root, or the owner of that checkout.

A platform that was started with settings of its own (other ports, another store) is then reached with those
(`services.settings_in_force`), unless the environment says otherwise.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

import elastic_core
from elastic_core.errors import UserError
from elastic_core.services.settings_in_force import recorded

HOME, PROJECT = ".elastic", "airflow.cfg.template"  # what a home is called, and a file by which a project is known
CHECKOUT = Path(elastic_core.__file__).parents[1]


def use_home(environ: MutableMapping[str, str], here: Path, checkout: Path = CHECKOUT) -> None:
    """Let the settings that are read next be those of the installation meant. Raises `UserError` for one of somebody
    else that the environment does not name."""
    for name, path in list(_found(environ, here, checkout)):
        environ.setdefault(name, str(path))


def use_settings_in_force(environ: MutableMapping[str, str]) -> None:
    """Let them be those that its services run with, but for what the environment says."""
    home = environ.get("ELASTIC_HOME")
    for name, value in (recorded(Path(home)) if home else {}).items():
        environ.setdefault(name, value)


def _found(environ: Mapping[str, str], here: Path, checkout: Path) -> Iterator[tuple[str, Path]]:
    above = (here, *here.parents)
    project = None
    if "ELASTIC_PROJECT" not in environ:
        project = next((folder for folder in above if (folder / PROJECT).is_file()), None)
        if project is not None:
            _require_trusted("ELASTIC_PROJECT", project, project / PROJECT)
        elif (checkout / PROJECT).is_file():
            project = checkout
        if project is not None:
            yield "ELASTIC_PROJECT", project
    if "ELASTIC_HOME" not in environ:
        home = next((folder / HOME for folder in above if (folder / HOME).is_dir()), None)
        if home is not None:
            _require_trusted("ELASTIC_HOME", home, home)
        elif project is not None or "ELASTIC_PROJECT" in environ:
            home = Path(environ.get("ELASTIC_PROJECT", project or "")) / HOME
        if home is not None:
            yield "ELASTIC_HOME", home


def _require_trusted(name: str, value: Path, found: Path) -> None:
    about = found.stat()
    if about.st_uid in (0, os.geteuid(), CHECKOUT.stat().st_uid) and not about.st_mode & stat.S_IWOTH:
        return
    whose = "anybody may write it" if about.st_mode & stat.S_IWOTH else f"it belongs to the user {about.st_uid}"
    raise UserError(
        f"{found} was found at or above this folder, and {whose}: what stands there would run as you. If you mean that "
        f"installation, say so with {name}={value}; else call the command from another folder"
    )
