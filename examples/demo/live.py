"""The live table: who holds which slot, how far each job is, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elastic_core.domain import JobState, Node
from elastic_core.protocol.records import JobStatus

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


def picture(nodes: Sequence[Node], jobs: Mapping[str, JobStatus | None], elapsed: float) -> RenderableType:
    colours = dict(zip(jobs, COLOURS, strict=False))
    table = Table(expand=True, title_justify="left", title=f"{elapsed:.0f} s")
    for column in ("job", "state", "segment", "slots", "batch"):
        table.add_column(column, no_wrap=True)
    table.add_column("progress")
    table.add_column("why", ratio=1, overflow="fold")
    for job_id, job in jobs.items():
        name = Text(job_id, style=colours[job_id])
        if job is None:
            table.add_row(name, "not here yet")
            continue
        held = job.allocation
        table.add_row(
            name,
            str(job.state if job.state is not JobState.ACTIVE else job.segment_state),
            job.segment_id.rpartition("_")[2],
            str(held.num_slots) if held else "-",
            str(held.global_batch) if held else "-",
            ProgressBar(total=job.total_samples, completed=job.done_samples, width=16),
            job.target_reason if job.state is JobState.ACTIVE else (job.error or ""),
        )
    return Group(_slots(nodes, jobs, colours), table)


def _slots(nodes: Sequence[Node], jobs: Mapping[str, JobStatus | None], colours: Mapping[str, str]) -> Text:
    holders = {
        slot: job_id
        for job_id, job in jobs.items()
        if job is not None and job.allocation is not None
        for slot in job.allocation.slots
    }
    text = Text()
    for node in nodes:
        text.append(f"{node.name} ")
        for slot in node.slots():
            holder = holders.get(slot)
            text.append("■ " if holder else "□ ", style=colours.get(holder or "", "dim"))
        text.append("   ")
    return text


def holdings(jobs: Mapping[str, JobStatus | None]) -> dict[str, str]:
    """Who holds how much, in words: what is worth a new line where there is no terminal."""
    found = {}
    for job_id, job in jobs.items():
        if job is not None:
            slots = job.allocation.num_slots if job.allocation else 0
            state = job.state if job.state is not JobState.ACTIVE else job.segment_state
            found[job_id] = f"{state} on {slots}"
    return found


def line(jobs: Mapping[str, JobStatus | None]) -> str:
    done = {job_id: job.done_samples / job.total_samples for job_id, job in jobs.items() if job is not None}
    return "; ".join(f"{job_id} {words} {done[job_id]:.0%}" for job_id, words in holdings(jobs).items())
