"""A placed job in words: which layers run where, how fast and how dear that was predicted to be, and what it is."""

from __future__ import annotations

from elastic_core.domain.placed import cost_of_a_million
from elastic_core.protocol.records import JobStatus


def stages_words(job: JobStatus) -> str:
    """E.g. "layer 0 on 4 cpu; layers 1 to 3 on 1 t4"; empty for a job that holds no stages."""
    return "; ".join(map(str, job.allocation.stages)) if job.allocation is not None else ""


def figures_words(job: JobStatus) -> str:
    """E.g. "14600 samples/s predicted, 14100 measured (-3 %); 9.71 a million samples predicted, 10.1 measured; within
    0.4 % of the optimum"; empty where nothing was predicted."""
    placed, speed = job.placed, job.samples_per_second
    if placed is None:
        return ""
    held = job.allocation is not None and job.allocation.stages
    rate = job.price_per_hour if held and job.price_per_hour else placed.price_per_hour
    words = f"{placed.samples_per_second:.4g} samples/s predicted"
    cost = f"{cost_of_a_million(placed.price_per_hour, placed.samples_per_second):.3g} a million samples predicted"
    if speed and held:
        words += f", {speed:.4g} measured ({100 * (speed / placed.samples_per_second - 1):+.0f} %)"
        cost += f", {cost_of_a_million(rate, speed):.3g} measured"
    gap = "" if placed.gap is None else f"; {100 * placed.gap:.1f} % dearer than the cheapest placement as fast"
    return f"{words}; {cost}{gap}"


def cost_words(job: JobStatus) -> str:
    """Of any job: e.g. "1.20 of 5.00; 3.40 expected in all, at 2.04 an hour"; empty where nothing costs anything."""
    of = f" of {job.spec.budget:.2f}" if job.spec.budget is not None else ""
    if not (job.spent or of or job.price_per_hour):
        return ""
    rate = f"at {job.price_per_hour:.4g} an hour" if job.price_per_hour else ""
    expected = f"{job.expected_cost:.2f} expected in all" if job.expected_cost is not None else ""
    more = ", ".join(part for part in (expected, rate) if part)
    return f"{job.spent:.2f}{of}" + (f"; {more}" if more else "")
