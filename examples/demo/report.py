"""What happened: every segment, the reason of every resize, and the proof that each sample was read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from elastic_core.domain import JobState
from elastic_core.protocol.forecasts import Forecast
from elastic_core.protocol.process_groups import held_out
from elastic_core.protocol.records import JobStatus, SegmentStatus
from elastic_core.settings import Settings
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.data.audit import AuditResult, prove
from examples.demo import ends
from examples.demo.jobs import Plan
from examples.demo.services import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything that the demo claims, gathered from the ledger, the store and Airflow."""

    job: JobStatus
    plan: Plan
    segments: Sequence[SegmentStatus]
    reads: Sequence[AuditResult]
    run_state: str
    forecasts: Sequence[Forecast] = ()
    probability: float | None = None  # of its class, the last that a decision saw; None: never asked, or not known

    def whole_epochs(self) -> Sequence[AuditResult]:
        """All but the pass in which a job reached its target loss."""
        cut = self.plan.target_loss is not None and bool(self.reads) and self.reads[-1].proven is None
        return self.reads[:-1] if cut else self.reads

    def resizes(self) -> list[tuple[SegmentStatus, SegmentStatus]]:
        held = [segment for segment in self.segments if segment.allocation is not None]
        return [(a, b) for a, b in pairwise(held) if slots(a) != slots(b)]


@dataclass(frozen=True, slots=True)
class Claim:
    words: str
    holds: bool
    detail: str = ""


def gather(platform: Platform, job_id: str, plan: Plan, probability: float | None) -> Outcome:
    """Raises `NotFound` for a job that never reached the ledger."""
    settings, job = platform.settings, platform.control.job(job_id)
    store = open_store(settings.store_url(), endpoint=settings.s3_endpoint)
    return Outcome(
        job=job,
        plan=plan,
        segments=platform.control.segments(job_id),
        reads=prove(platform.control.reads(job_id), job.facts.dataset_samples, store),
        run_state=platform.run_state(job_id),
        forecasts=platform.control.forecasts(job_id),
        probability=probability,
    )


def slots(segment: SegmentStatus) -> int:
    return segment.allocation.num_slots if segment.allocation else 0


def show(console: Console, outcome: Outcome) -> None:
    job = outcome.job
    table = Table(title=f"{job.job_id}: {job.state}", title_justify="left", expand=True)
    for column in ("segment", "slots", "batch", "steps", "waited", "ran"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("why this allocation", ratio=1, overflow="fold")
    for segment in outcome.segments:
        if segment.allocation is None or segment.granted_at is None:
            continue
        began = segment.started_at or segment.granted_at
        table.add_row(
            str(segment.index) + (f" (attempt {segment.attempt + 1})" if segment.attempt else ""),
            str(slots(segment)),
            str(segment.allocation.global_batch),
            f"{segment.start_step}-{segment.end_step}" if segment.end_step is not None else f"{segment.start_step}-",
            "handed over"
            if segment.handed_over
            else f"{segment.granted_at - (segment.asked_at or segment.granted_at):.1f} s",
            f"{segment.ended_at - began:.1f} s" if segment.ended_at else "",
            segment.grant_reason or "",
        )
    console.print(table)
    for before, after in outcome.resizes():
        word = "grew" if slots(after) > slots(before) else "shrank"
        asked = before.end_reason or ""  # a segment that was asked to end says why; else the next one's reason does
        why = asked if asked.startswith("resize") else after.grant_reason
        line = f"  {word} {slots(before)} -> {slots(after)} slots at step {after.start_step}: {why}"
        console.print(line, highlight=False)
    for line in ends.lines(outcome):
        console.print(line, highlight=False)
    _show_reads(console, outcome)
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in held_out(job.results).items())
    console.print(f"  held-out metrics: {metrics or 'none'}", highlight=False)
    console.print()


def _show_reads(console: Console, outcome: Outcome) -> None:
    whole = outcome.whole_epochs()
    proven = [proof for proof in whole if proof.proven]
    compared = " (every recorded index compared)" if all(proof.every_index for proof in proven) else ""
    console.print(
        f"  reads: {len(proven)} of {len(whole)} epochs proven: each of the "
        f"{outcome.job.facts.dataset_samples} samples was read exactly once{compared}",
        highlight=False,
    )
    for proof in whole:
        if not proof.proven:
            console.print(f"  epoch {proof.epoch}: {proof.problem or 'not complete'}", style="red")


def claims(num_jobs: int, outcomes: Sequence[Outcome]) -> list[Claim]:
    """What the demo promises, each held against what happened."""
    resizes = [(slots(a), slots(b)) for outcome in outcomes for a, b in outcome.resizes()]
    grew, shrank = sum(b > a for a, b in resizes), sum(b < a for a, b in resizes)
    reads = [proof for outcome in outcomes for proof in outcome.whole_epochs()]
    return [
        Claim(
            "every job finished",
            len(outcomes) == num_jobs and all(o.job.state is JobState.FINISHED for o in outcomes),
            "; ".join(o.job.error for o in outcomes if o.job.error),
        ),
        Claim("every run in Airflow ended well", all(o.run_state == "success" for o in outcomes)),
        Claim("jobs grew when slots got free", grew > 0, f"{grew} times"),
        Claim("jobs shrank when others came", shrank > 0, f"{shrank} times"),
        Claim(
            "every sample of every epoch was read exactly once",
            bool(reads) and all(proof.proven and proof.every_index for proof in reads),
            f"{len(reads)} epochs",
        ),
        *(_learned(outcome) for outcome in outcomes),
        *(claim for outcome in outcomes if outcome.plan.target_loss is not None for claim in _forecast(outcome)),
    ]


def _forecast(outcome: Outcome) -> Iterator[Claim]:
    name, told = outcome.plan.label, ends.expected(outcome)
    yield Claim(f"{name}: its work was forecast as an interval while it ran", bool(told), f"{len(told)} forecasts")
    yield Claim(f"{name} ended by its loss, before its limit", ends.ended_early(outcome), ends.ending(outcome))


def _learned(outcome: Outcome) -> Claim:
    facts, bar = outcome.job.facts, outcome.plan.metric_bar
    value = held_out(outcome.job.results).get(facts.metric)
    good = value is not None and (value >= bar if facts.metric_mode == "max" else value <= bar)
    sign = ">=" if facts.metric_mode == "max" else "<="
    got = "nothing" if value is None else f"{value:.4g}"
    return Claim(f"{outcome.plan.label} learned: {facts.metric} {sign} {bar:g}", good, got)


def addresses(console: Console, settings: Settings, outcomes: Sequence[Outcome], up: bool) -> None:
    console.print(f"Airflow  {settings.airflow_page()}  (user admin, password: `elastic password`)")
    console.print(f"         {settings.airflow_page()}/plugin/elastic  who holds which slot")
    for outcome in outcomes:
        run, experiment = (outcome.job.results.get(f"mlflow_{name}_id") for name in ("run", "experiment"))
        if run:
            place = f"#/experiments/{experiment}/models?workflowType=machine_learning"
            console.print(f"MLflow   {settings.mlflow_page()}/{place}  checkpoints of {outcome.job.job_id}")
    if not up:
        console.print("         stopped in a moment; `make up` starts them again with all of this in them")
