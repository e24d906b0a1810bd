"""Launchers by name, and how a segment is started by one: `ELASTIC_LAUNCHER` names that of an installation.

Another kind of launcher (of another host, of a cluster manager) is one more entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from elastic_core.errors import UserError
from elastic_core.launch.debug import DebugLauncher
from elastic_core.launch.launcher import GroupStatus, Launcher
from elastic_core.launch.local import LocalLauncher
from elastic_core.launch.on_ray.ray_launcher import RayLauncher
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.protocol.service import ServiceControl
from elastic_core.settings import Settings
from elastic_core.state.job_code import pinned_code

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


def start_segment(
    control: ServiceControl, launcher: Launcher, settings: Settings, segment_id: str
) -> tuple[LaunchOrder, GroupStatus]:
    """Start the processes of a granted segment, or find them, on the job's pinned code.

    Raises `Conflict` where it holds no live lease, and as `Launcher.start` does.
    """
    order = control.launch_order(segment_id)
    if launcher.poll(order.origin_epoch) is None:  # else they run already, whatever they were begun with
        order = pinned_code.pin(control, settings, order)
    return order, launcher.start(order)
