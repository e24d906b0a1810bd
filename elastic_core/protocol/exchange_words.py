"""The exchange of a job in words: which, why, what it saves against the exact sum, as far as that was measured."""

from __future__ import annotations

from elastic_core.domain import AUTO, EXACT, ExchangeChoice, ExchangeFallback, ExchangeFigures
from elastic_core.protocol.records import JobStatus
from elastic_core.spec.parts.job_comm import CLASSES, EXACTLY, STAGE_RATIO
from elastic_core.text import plural

_LESS = {  # what a class of exchanges costs besides seconds and bytes
    "averaging": " (weights are averaged: the same samples may teach less)",
    "partial": " (gradients of some of the samples: the same samples may teach less)",
}


def choice_words(choice: ExchangeChoice) -> str:
    """E.g. "bytegrad on 2 slots: 2.51 s and 25.3 MB a step, against 8.31 s and 101 MB of allreduce; ..."."""
    return f"{choice.algorithm}{_on_slots(choice, _LESS.get(CLASSES.get(choice.algorithm, EXACTLY), ''))}"


def _on_slots(choice: ExchangeChoice, less: str) -> str:
    """What is known of it, after its name. `less`: what it costs besides."""
    by_name = {figures.algorithm: figures for figures in choice.figures}
    own, exact = by_name.get(choice.algorithm), by_name.get(EXACT)
    words = f" on {plural(choice.num_slots, 'slot')}{less}"
    if own is not None:
        words += f": {_measured(own)} a step"
    if exact is not None and choice.algorithm != EXACT:
        words += f", against {_measured(exact)} of {EXACT}"
    if own is not None and own.bucket_bytes is not None:
        words += f", in buckets of {own.bucket_bytes / (1 << 20):g} MiB, the best of {own.size_trials + 1} sizes"
    others = [figures for figures in choice.figures if figures.algorithm not in (choice.algorithm, EXACT)]
    if not others:
        return f"{words}; nothing else could save a twentieth of a step" if choice.algorithm == EXACT else words
    return f"{words}; {', '.join(f'{figures.algorithm} {_either(figures)}' for figures in others)}"


def fallback_words(fallback: ExchangeFallback) -> str:
    exactly = "stages send each other all" if fallback.algorithm == STAGE_RATIO else EXACT
    return (
        f"{exactly}, for good: training diverged under {fallback.algorithm} and went on from step {fallback.step}: "
        f"{fallback.reason}"
    )


def exchange_words(job: JobStatus) -> str:
    """Of a job that asks for another than the exact sum; "" of others."""
    if job.exchange_fallback is not None:
        return fallback_words(job.exchange_fallback)
    comm = job.spec.comm
    if comm.algorithm == AUTO:
        return chosen_words(job)
    if comm.stage_ratio is not None:
        return f"{comm.algorithm}; activations between stages up to {comm.stage_ratio:g} times smaller"
    return "" if comm.algorithm == EXACT else named_words(job)


def named_words(job: JobStatus) -> str:
    """Of a job whose spec names another algorithm than the exact sum: what that saves, once it is known."""
    algorithm, held, known = job.spec.comm.algorithm, job.allocation, job.exchange
    words = f"{algorithm} ({CLASSES[algorithm]})"
    if known is None or known.algorithm != algorithm or (held is not None and held.num_slots != known.num_slots):
        return words
    return f"{words}{_on_slots(known, '')}"


def chosen_words(job: JobStatus) -> str:
    """Of a job whose spec leaves the algorithm open."""
    allow = job.spec.comm.allow or EXACTLY
    if allow == EXACTLY:
        return f"auto: {EXACT}, since comm.allow is {EXACTLY} and admits no other"
    held = job.allocation
    if held is not None and held.num_slots == 1:
        return f"auto ({allow}): nothing is exchanged on 1 slot"
    if job.exchange is None or (held is not None and held.num_slots != job.exchange.num_slots):
        expected = "" if held is None else held.expected_comm
        first = f", {expected} first: the decision counts with it" if expected not in ("", EXACT) else ""
        return f"auto ({allow}): {EXACT}, until others have been tried{first}"
    return f"auto ({allow}): {choice_words(job.exchange)}"


def figures_by_name(choice: ExchangeChoice) -> dict[str, float]:
    """As metrics: `exchange/<algorithm>/<figure>` in seconds and bytes a step."""
    return {
        f"exchange/{figures.algorithm}/{name}": value
        for figures in choice.figures
        for name, value in (
            ("predicted_seconds", figures.predicted_seconds),
            ("predicted_bytes", figures.predicted_bytes),
            ("measured_seconds", figures.measured_seconds),
            ("measured_bytes", figures.measured_bytes),
            ("bucket_bytes", figures.bucket_bytes),
        )
        if value is not None
    }


def _either(figures: ExchangeFigures) -> str:
    if figures.measured_seconds is not None:
        return f"{figures.measured_seconds:.3g} s"
    return "unknown" if figures.predicted_seconds is None else f"{figures.predicted_seconds:.3g} s predicted"


def _measured(figures: ExchangeFigures) -> str:
    seconds = figures.predicted_seconds if figures.measured_seconds is None else figures.measured_seconds
    sent = (figures.predicted_bytes if figures.measured_bytes is None else figures.measured_bytes) or 0.0
    words = f"{'?' if seconds is None else f'{seconds:.3g}'} s and {sent / 1e6:.3g} MB"
    return f"{words} (predicted)" if figures.measured_seconds is None else words
