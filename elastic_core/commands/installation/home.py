"""Finds the installation that a command means, from whatever folder it is called.

In this order: what the environment says (`ELASTIC_HOME`); the nearest folder at or above the current one that holds
`.elastic`; the checkout that this command was installed from. A platform that was started with settings of its own
(other ports, another store) is then reached with those (`services.settings_in_force`), unless the environment says
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

import elastic_core
from elastic_core.services.settings_in_force import recorded

HOME, PROJECT = ".elastic", "airflow.cfg.template"  # what a home is called, and a file by which a project is known
CHECKOUT = Path(elastic_core.__file__).parents[1]


def use_home(environ: MutableMapping[str, str], here: Path, checkout: Path = CHECKOUT) -> None:
    """Let the settings that are read next be those of the installation meant."""
    for name, path in list(_found(environ, here, checkout)):
        environ.setdefault(name, str(path))


def use_settings_in_force(environ: MutableMapping[str, str]) -> None:
    """Let them be those that its services run with, but for what the environment says."""
    home = environ.get("ELASTIC_HOME")
    for name, value in (recorded(Path(home)) if home else {}).items():
        environ.setdefault(name, value)


def _found(environ: Mapping[str, str], here: Path, checkout: Path) -> Iterator[tuple[str, Path]]:
    above = (here, *here.parents)
    home = next((folder / HOME for folder in above if (folder / HOME).is_dir()), None)
    project = next((folder for folder in above if (folder / PROJECT).is_file()), None)
    if project is None and (checkout / PROJECT).is_file():
        project = checkout
    if project is not None:
        yield "ELASTIC_PROJECT", project
    if home is None and project is not None:
        home = Path(environ.get("ELASTIC_PROJECT", project)) / HOME
    if home is not None:
        yield "ELASTIC_HOME", home
