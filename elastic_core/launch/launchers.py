"""Launchers by name: `ELASTIC_LAUNCHER` names the one of an installation.

Another kind of launcher (of another host, of a cluster manager) is one more entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from elastic_core.errors import UserError
from elastic_core.launch.debug import DebugLauncher
from elastic_core.launch.launcher import Launcher
from elastic_core.launch.local import LocalLauncher
from elastic_core.launch.on_ray.ray_launcher import RayLauncher
from elastic_core.settings import Settings

LAUNCHERS: Mapping[str, Callable[[Settings], Launcher]] = {
    "local": LocalLauncher,
    "debug": DebugLauncher,
    "ray": RayLauncher,
}


def launcher(name: str, settings: Settings) -> Launcher:
    """Raises `UserError` for a name that is none."""
    if name not in LAUNCHERS:
        raise UserError(f"there is no launcher {name!r}; there are: {', '.join(sorted(LAUNCHERS))}")
    return LAUNCHERS[name](settings)


def chosen(settings: Settings) -> Launcher:
    """The launcher of this installation. Raises `UserError` where its settings are not complete."""
    return launcher(settings.launcher, settings)
