"""Which layout a job gets with a count of slots: the admitted one whose step is predicted to be the quickest.

The prediction is the job's own (`predict.speed.layout_speeds`: measured where it ran, a guess where it never did), so
one layout after another is tried only while its guess beats what was measured. Changing a layout costs a resize in
place; a job that runs changes for a clear gain only, that pays for the resize within the work that it has left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from elastic_core.domain import JobView, Layout, Snapshot, Target
from elastic_core.predict.speed.efficiency import work_per_sample
from elastic_core.predict.speed.throughput import StepTime

MIN_GAIN = 0.05  # of a step's time: what predictions err by where both layouts were measured
MIN_RESIZES_SAVED = 2.0  # resizes that a change has to save
MOST_OTHERS = 3  # layouts that a reason compares with the chosen one, the quickest first


def with_layouts(targets: Mapping[str, Target], snapshot: Snapshot) -> dict[str, Target]:
    """The targets, each in the best layout for its slots. Those of one layout, of several types, or of none stay."""
    jobs = {job.job_id: job for job in snapshot.jobs}
    return {job_id: _in_layout(target, jobs[job_id], snapshot) for job_id, target in targets.items()}


def choose(job: JobView, kind: str, num_slots: int, num_nodes: int, batch: int) -> Layout:
    """The layout for a target of the job; the simplest where the job admits none of that size."""
    return _choice(job, kind, num_slots, num_nodes, batch)[0]


def _choice(job: JobView, kind: str, num_slots: int, num_nodes: int, batch: int) -> tuple[Layout, str]:
    """With the reason in words: how its step compares with that of others, and which of them the job never tried."""
    admitted = job.limits.layouts(num_slots)
    if len(admitted) <= 1:
        return (admitted[0], "") if admitted else (Layout(data=num_slots), "")
    times = StepTime.of(job.throughput, job.limits)
    seconds = {layout: times.seconds_in(layout, num_nodes, kind, batch, job.limits) for layout in admitted}
    best = min(admitted, key=lambda layout: seconds[layout])  # the simplest of equals
    held = job.allocation.layout if job.allocation is not None else None
    chosen = best if held not in seconds or _pays(job, seconds[held], seconds[best], batch) else held
    tried = {point.layout or Layout(data=point.num_slots) for point in job.profile}
    return chosen, _in_words(chosen, seconds, tried) if tried else ": nothing is measured yet"


def _pays(job: JobView, held: float, best: float, batch: int) -> bool:
    """Whether a running job should leave a layout whose step takes `held` seconds for one whose takes `best`."""
    work = work_per_sample(batch, job.limits.reference_batch, job.noise_scale, scale_invariant=job.scale_invariant)
    steps = job.remaining_samples / (batch * work)
    gain = held - best
    pause = job.resize_seconds if job.in_place_seconds is None else job.in_place_seconds
    return gain > MIN_GAIN * held and gain * steps > MIN_RESIZES_SAVED * pause


def _in_words(chosen: Layout, seconds: Mapping[Layout, float], tried: Collection[Layout]) -> str:
    """By ratios: seconds would go on being measured, and stand beside others, while the decision stays."""

    def guess(layout: Layout) -> str:
        return "" if layout in tried else " (never tried)"

    others = sorted((layout for layout in seconds if layout != chosen), key=lambda layout: seconds[layout])
    beside = ", ".join(
        f"{seconds[layout] / seconds[chosen]:.3g} times as long with {layout}{guess(layout)}"
        for layout in others[:MOST_OTHERS]
    )
    kept = "" if seconds[chosen] <= seconds[others[0]] else "; the quicker would not pay for the change"
    return f"{guess(chosen)}: a step would take {beside}{kept}"


def _in_layout(target: Target, job: JobView, snapshot: Snapshot) -> Target:
    kinds = list(target.wanted)
    if not job.limits.cuts or len(kinds) != 1:
        return target
    largest = max((node.num_slots for node in snapshot.nodes if node.present and node.type == kinds[0]), default=1)
    num_nodes = sum(1 for count in target.nodes.values() if count) if target.nodes else -(-target.num_slots // largest)
    layout, why = _choice(job, kinds[0], target.num_slots, num_nodes, target.global_batch)
    suffix = "" if layout == Layout(data=target.num_slots) and not why else f"; as {layout}{why}"
    return replace(target, layout=layout, reason=target.reason + suffix)
