"""The training processes of this machine, as `elastic down` sees them: asked for a boundary first, then ended.

Bounded in time whatever they do. A group that obeys has committed and told the ledger when this returns, one that hangs
is killed with all that descends from it, and reported by the next reconciliation; where something of that does not end,
its agent goes on, which alone knows of it. Cache servers and access broker end last: nobody restores any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from elastic_core.errors import ElasticError
from elastic_core.host.messages import AgentProcess
from elastic_core.host.process import ProcessId, end_subreaper
from elastic_core.host.rundir import RunDir
from elastic_core.launch import launchers
from elastic_core.launch.folders import GroupFolders
from elastic_core.logs import get_logger
from elastic_core.settings import Settings
from elastic_core.state.memory_tier import cache_servers
from elastic_core.state.store_access import access_brokers

log = get_logger(__name__)
DELIVERY_SECONDS = 5.0  # for an agent to tell the ledger of its end; reconciliation tells it later otherwise
ELSEWHERE_SECONDS = 30.0  # past the grace, for groups of other machines
POLL_SECONDS = 0.1
FIRM_SECONDS = 5.0  # for an agent to do what it does at once, on a machine that is busy


def stop_groups(settings: Settings) -> int:
    """Stop every process group of the installation, within `settings.grace_seconds` if they obey; how many there were.

    And this machine's cache servers and access broker.
    """
    num_groups = _stop_here(settings) if settings.launcher == "local" else _stop_elsewhere(settings)
    cache_servers.stop(settings)
    access_brokers.stop(settings)
    return num_groups


def _stop_here(settings: Settings) -> int:
    folders = GroupFolders(settings)
    agents = {
        group.origin_epoch: agent
        for group in folders.groups()
        if (agent := _agent(settings, group.origin_epoch)) and agent.alive()
    }
    for epoch in agents:
        folders.stop(epoch, settings.grace_seconds)
    _wait(lambda: any(group.alive for group in folders.groups()), settings.grace_seconds + FIRM_SECONDS)
    _wait(lambda: any(agent.alive() for agent in agents.values()), DELIVERY_SECONDS)
    for epoch in agents:
        folders.stop(epoch, 0.0)  # an agent that still tries to deliver its report ends now
    _wait(lambda: any(agent.alive() for agent in agents.values()), FIRM_SECONDS)
    for epoch, agent in agents.items():
        if why := end_subreaper(agent):
            log.warning(f"the agent of epoch {epoch} (pid {agent.pid}) goes on: {why}")
    _wait(lambda: any(group.alive for group in folders.groups()), FIRM_SECONDS)
    return len(agents)


def _stop_elsewhere(settings: Settings) -> int:
    """On other machines. Where they cannot be asked their groups go on, and end when they cannot renew their leases."""
    try:
        launcher = launchers.chosen(settings)
        alive = [group.origin_epoch for group in launcher.groups() if group.alive]
        for epoch in alive:
            launcher.stop(epoch, settings.grace_seconds)
        _wait(lambda: any(group.alive for group in launcher.groups()), settings.grace_seconds + ELSEWHERE_SECONDS)
    except ElasticError as error:
        log.warning(f"training processes were not stopped: {error}")
        return 0
    return len(alive)


def _agent(settings: Settings, epoch: int) -> ProcessId | None:
    agent = RunDir.of(settings.home, epoch).read(AgentProcess)
    return agent.process if agent else None


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    """Wait while the condition holds, for so long at most."""
    deadline = time.monotonic() + seconds
    while condition() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
