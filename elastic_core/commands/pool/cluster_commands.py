"""`elastic cluster`: the nodes, their slots, and which job holds each."""

from __future__ import annotations

import typer

from elastic_core.commands.opening import open_api
from elastic_core.commands.pool.node_commands import goes
from elastic_core.commands.printing import Json, Words, print_json, print_table
from elastic_core.domain import to_json
from elastic_core.protocol.cluster.cluster_slots import ClusterShown, nodes_shown
from elastic_core.protocol.records import NodeStatus
from elastic_core.settings import Settings
from elastic_core.text import plural

app = typer.Typer()
_out = Words(highlight=False, soft_wrap=True)


@app.command()
def cluster(as_json: Json = False) -> None:
    """Nodes, slots, who holds them, and which jobs wait for some."""
    shown = open_api(Settings()).cluster()
    if as_json:
        print_json(to_json(shown))
        return
    rows = (_row(node, shown) for node in nodes_shown(shown.nodes))
    print_table(("node", "type", "slots", "held", "state", "by"), rows)
    usable = [slot for slot in shown.slots if slot.usable]
    leaving = sum(_leaving(node, shown) for node in shown.nodes)
    free = max(0, sum(slot.job is None for slot in usable) - leaving)
    _out.print(f"{free} of {len(usable)} slots are free; {plural(len(shown.waiting), 'job')} without slots")
    for job in shown.waiting:
        _out.print(f"  {job.job_id}: {job.reason}", markup=False)


def _leaving(node: NodeStatus, shown: ClusterShown) -> int:
    """Slots that are held by no allocation any more, but by processes that end."""
    return max(0, node.held_slots - sum(slot.node == node.name and slot.job is not None for slot in shown.slots))


def _row(node: NodeStatus, shown: ClusterShown) -> tuple[object, ...]:
    by_job: dict[str, list[str]] = {}
    for slot in shown.slots:
        if slot.node == node.name and slot.job is not None:
            by_job.setdefault(slot.job, []).append(str(slot.index))
    holders = [f"{job}:{','.join(indices)}" for job, indices in sorted(by_job.items())]
    leaving = _leaving(node, shown)
    holders += [f"{leaving} by processes that end"] if leaving else []
    aside = f"set aside: {node.set_aside_reason}{goes(node)}"
    state = "gone" if not node.present else aside if node.set_aside_at else "in use"
    return node.name, node.type, node.num_slots, node.held_slots, state, "  ".join(holders)
