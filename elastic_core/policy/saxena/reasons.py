"""The words of `elastic_batch`: why a job gets what it gets, with the figures that decided it."""

from __future__ import annotations

from elastic_core.domain import JobView
from elastic_core.policy.base.batch_bound import efficiency_in_words
from elastic_core.policy.saxena.objective import SLOT_PRICE, Prospect
from elastic_core.text import plural


def turned_away(job: JobView) -> str:
    return (
        f"turned away: the pool could not hold the smallest counts of all jobs (this one needs "
        f"{plural(job.limits.min_slots, 'slot')}) and the newest goes first; submit it again when there is room"
    )


def explain(
    prospect: Prospect, kind: str, count: int, num_running: int, idle: int, *, exploring: bool,
    batch_rule: str | None = None,
) -> str:  # fmt: skip
    """One sentence on the count, one on the batch where it changes, one on idle slots that were left.

    `batch_rule`: how the batch was chosen, where it is not the best one that the analyser found.
    """
    parts = [_headline(prospect, kind, count, num_running, exploring=exploring)]
    batch = prospect.choices[kind][count].batch
    if prospect.job.last_batch not in (None, batch):
        job = prospect.job
        weighed = ", weighed by gradient noise," if job.scale_invariant and job.noise_scale is not None else ""
        why = batch_rule or f"near the best throughput{weighed} at this count"
        efficiency_words = efficiency_in_words(job, batch, job.noise_scale)
        parts.append(f"global batch {job.last_batch} -> {batch}{efficiency_words}: {why}")
    parts.append("" if exploring else _why_not_more(prospect, kind, count, idle))
    return "; ".join(part for part in parts if part)


def _headline(prospect: Prospect, kind: str, count: int, num_running: int, *, exploring: bool) -> str:
    speed = _speed(prospect, kind, count)
    slots = f"{plural(count, 'slot')} of {kind}"
    if exploring:
        return f"tries {slots} while nobody else needs them: {speed}"
    verb = _verb(prospect, kind, count)
    if num_running == 1:
        return f"{verb} {slots}: {speed}"
    return f"{verb} {slots}: {speed}, the best sum over {plural(num_running, 'job')}"


def _verb(prospect: Prospect, kind: str, count: int) -> str:
    held_kind, held = prospect.held
    if held == 0:
        return "starts on"
    if held_kind != kind:
        return f"moves from {plural(held, 'slot')} of {held_kind or 'several types'} to"
    if held == count:
        return "stays on"
    return f"{'grows' if count > held else 'shrinks'} from {held} to"


def _speed(prospect: Prospect, kind: str, count: int) -> str:
    how = "measured" if count in prospect.measured[kind] else "predicted"
    return f"{how} {prospect.choices[kind][count].speedup:.2f} x one slot"


def _why_not_more(prospect: Prospect, kind: str, count: int, idle: int) -> str:
    """Says so when slots idle that the job may use: they gain too little, or could not be measured."""
    reachable = [n for n in sorted(prospect.choices[kind]) if count < n <= count + idle]
    if not reachable:
        return ""
    known = [n for n in reachable if n in prospect.measured[kind]]
    other = known[-1] if known else reachable[0]
    if prospect.paused(kind, other):
        return f"{plural(other, 'slot')} could be had, but the last start on them ended without a measurement"
    gain = (prospect.choices[kind][other].speedup - prospect.choices[kind][count].speedup) / (other - count)
    if gain < SLOT_PRICE:
        return (
            f"more slots gain little: {plural(other, 'slot')} {_speed(prospect, kind, other)}, that is {gain:+.2f} "
            f"for each further slot, and {SLOT_PRICE:.2f} is asked for; the rest stays free"
        )
    if other > prospect.known_up_to(kind):
        return f"{plural(other, 'slot')} will be tried once this count is measured"
    return f"{plural(other, 'slot')} ({_speed(prospect, kind, other)}) would not pay back the resize"
