"""The timeline of a window that may be over, as the page draws it. Pure: records in, records out."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_airflow.page.overview import HoldShown, NodeEventShown, NodeShown, Shown, hold_shown, nodes_shown
from elastic_core.protocol.cluster.cluster_timeline import NodeEvent, TimelinePage
from elastic_core.protocol.records import NodeStatus


class TimelineShown(Shown):
    since: float
    until: float
    nodes: tuple[NodeShown, ...]
    holds: tuple[HoldShown, ...]
    left_out: int  # leases of the window, the latest, that are more than are shown at once
    events: tuple[NodeEventShown, ...]


def timeline_shown(nodes: Sequence[NodeStatus], held: TimelinePage, events: Sequence[NodeEvent]) -> TimelineShown:
    return TimelineShown(
        since=held.since,
        until=held.until,
        nodes=nodes_shown(nodes, held.held, events),
        holds=tuple(map(hold_shown, held.held)),
        left_out=held.total - len(held.held),
        events=tuple(NodeEventShown(at=event.at, node=event.node, what=event.what, why=event.why) for event in events),
    )
