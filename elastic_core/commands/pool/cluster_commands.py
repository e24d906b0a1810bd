"""`elastic cluster`: the nodes, their slots, and which job holds each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import typer

from elastic_core.commands.opening import open_api
from elastic_core.commands.printing import Json, print_json, print_table
from elastic_core.domain import to_json
from elastic_core.protocol.records import JobStatus, NodeStatus
from elastic_core.settings import Settings

app = typer.Typer()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotShown:
    """`job` None: no job that is active holds it; processes that end still may."""

    node: str
    index: int
    type: str
    usable: bool  # of a node that is there and not set aside
    job: str | None


@app.command()
def cluster(as_json: Json = False) -> None:
    """Nodes, slots, who holds them, and which jobs wait for some."""
    api = open_api(Settings())
    nodes, jobs = api.nodes(), api.jobs(active_only=True)
    slots = list(slots_of(nodes, jobs))
    waiting = [job for job in jobs if job.allocation is None]
    if as_json:
        print_json(
            {
                "nodes": [to_json(node) for node in nodes],
                "slots": [to_json(slot) for slot in slots],
                "waiting": [{"job_id": job.job_id, "reason": job.target_reason} for job in waiting],
            }
        )
        return
    print_table(("node", "type", "slots", "held", "state", "by"), (_row(node, slots) for node in _shown(nodes)))
    free = sum(slot.usable and slot.job is None for slot in slots) - sum(_leaving(node, slots) for node in nodes)
    typer.echo(f"{max(0, free)} of {sum(slot.usable for slot in slots)} slots are free; {len(waiting)} jobs wait")
    for job in waiting:
        typer.echo(f"  {job.job_id}: {job.target_reason}")


def slots_of(nodes: Sequence[NodeStatus], jobs: Sequence[JobStatus]) -> Iterator[SlotShown]:
    """Every slot of the nodes that are there, or are held, by node and index."""
    holders = {
        (slot.node, slot.index): job.job_id
        for job in jobs
        if job.allocation is not None
        for slot in job.allocation.slots
    }
    for node in _shown(nodes):
        usable = node.present and node.set_aside_at is None
        for index in range(node.num_slots):
            holder = holders.get((node.name, index))
            yield SlotShown(node=node.name, index=index, type=node.type, usable=usable, job=holder)


def _shown(nodes: Sequence[NodeStatus]) -> list[NodeStatus]:
    """Without nodes that have left, unless processes are still on them."""
    return [node for node in nodes if node.present or node.held_slots]


def _leaving(node: NodeStatus, slots: Sequence[SlotShown]) -> int:
    """Slots that are held by no allocation any more, but by processes that end."""
    return max(0, node.held_slots - sum(slot.node == node.name and slot.job is not None for slot in slots))


def _row(node: NodeStatus, slots: Sequence[SlotShown]) -> tuple[object, ...]:
    by_job: dict[str, list[str]] = {}
    for slot in slots:
        if slot.node == node.name and slot.job is not None:
            by_job.setdefault(slot.job, []).append(str(slot.index))
    holders = [f"{job}:{','.join(indices)}" for job, indices in sorted(by_job.items())]
    leaving = _leaving(node, slots)
    holders += [f"{leaving} by processes that end"] if leaving else []
    state = "gone" if not node.present else f"set aside: {node.set_aside_reason}" if node.set_aside_at else "in use"
    return node.name, node.type, node.num_slots, node.held_slots, state, "  ".join(holders)
