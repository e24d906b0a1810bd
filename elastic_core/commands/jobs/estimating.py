"""`elastic jobs estimate`: what a job would take in time and money on each choice of slots, before it is launched.

What its task's jobs have measured comes first. Where they have measured nothing, the control plane is asked what it has
learnt from jobs of all tasks (`ServiceControl.outlook`), and so it is about the work of a job whose end is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import expm1, log
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastic_core.commands.opening import open_api
from elastic_core.commands.printing import Json, Words, print_json, print_table
from elastic_core.domain import JobView, Quantiles, Snapshot, to_json
from elastic_core.errors import UserError
from elastic_core.protocol.forecasts import Outlook, StepOutlook
from elastic_core.protocol.records import JobFacts
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec, parse_job_spec, total_samples
from elastic_core.spec.inputs.value_files import read_values
from elastic_core.spec.job import most_samples
from elastic_core.text import span

if TYPE_CHECKING:  # what decides is loaded by who asks it
    from elastic_core.policy.horizon.estimates import Estimate

Profile = Annotated[
    Path | None,
    typer.Option(
        "--placement-profile",
        help="file of `elastic placement plan` whose layers the spec takes",
    ),
]
FORECAST = "forecast from jobs of other tasks"
HOUR = 3600.0
_out = Words(highlight=False, soft_wrap=True)


def with_profile(spec: Any, profile: Path | None) -> Any:
    """The spec's JSON with the layers, the types' traits and the floor of a profile file."""
    if profile is None:
        return spec
    if not isinstance(spec, dict):
        raise UserError("the job spec is no JSON object, so that no profile can be put into it")
    from elastic_core.placement.profile_files import read_profile

    model, floor = read_profile(profile).of_a_job()
    more = {"placement_profile": model, **({"placement_floor": floor} if floor else {})}
    return {"placement": "auto", **more, **spec}


@dataclass(frozen=True, slots=True)
class Told:
    """An estimate, and where 80 % of its time is expected to lie: None where nothing says so."""

    estimate: Estimate
    seconds: Quantiles | None = None


def estimate(
    spec: Annotated[Path, typer.Argument(help="file with the job spec: JSON, or YAML by its name")],
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """Time and money of a job on each choice of slots, before it is submitted, and what is not known of it."""
    from elastic_core.placement import bundles
    from elastic_core.policy.base.placed_jobs import pool_types
    from elastic_core.policy.horizon.estimates import UNKNOWN, estimates

    parsed = parse_job_spec(with_profile(read_values(spec, "job spec"), profile))
    facts, api = _facts(parsed), open_api(Settings())
    pool = api.snapshot()
    outlook = Outlook() if parsed.work.end_is_known else api.outlook(parsed, facts)
    job = _view(parsed, facts, pool, outlook)
    if job.limits.placed is not None:
        bundles.check(job.limits.placed, pool_types(pool.nodes), parsed.slots.types, parsed.slots.counts())
    found = estimates(job, pool)
    if parsed.work.end_is_known and any(one.basis == UNKNOWN for one in found):
        outlook = api.outlook(parsed, _inspected(parsed))
    told = [_told(one, job, outlook) for one in found]
    if as_json:
        print_json([{**to_json(one.estimate), "seconds_80": one.seconds} for one in told])
        return
    print_table(("slots", "samples/s", "time", "money", "an hour", "known"), (_row(one) for one in told))
    for line in (*_unknown(parsed, told), *_expected(parsed, job, facts, outlook, told)):
        _out.print(line, markup=False)


def _facts(spec: JobSpec) -> JobFacts:
    """Asked of the task's code only where the spec does not say it."""
    given = spec.placement_profile is not None and spec.placement_profile.layers
    is_plain = spec.work.end_is_known and not spec.work.scale_invariant
    if spec.work.samples is not None and is_plain and (given or not spec.places_layers):
        return JobFacts(dataset_samples=spec.work.samples)
    return _inspected(spec)


def _inspected(spec: JobSpec) -> JobFacts:
    from elastic_core.train.process.inspect import inspect_job

    return inspect_job(spec, Settings())


def _view(spec: JobSpec, facts: JobFacts, pool: Snapshot, outlook: Outlook) -> JobView:
    """Of the work that it has declared, or else that is expected of it."""
    from elastic_core.placement.placed_models import limits_of
    from elastic_core.snapshot.job_record import unsubmitted

    total = total_samples(spec, facts.dataset_samples)
    view = unsubmitted(spec, "estimate", limits_of(spec, facts), pool.now)
    return replace(view, total_samples=total if outlook.work is None else max(1, round(outlook.work[1])))


def _told(one: Estimate, job: JobView, outlook: Outlook) -> Told:
    """With an interval where the work is a forecast, and by a forecast of its steps where nothing was measured."""
    from elastic_core.policy.horizon.estimates import UNKNOWN
    from elastic_core.predict.work.work_left import finish_seconds

    work = outlook.work
    if one.basis != UNKNOWN:
        known = one.seconds is None or work is None
        return Told(one, None if known else finish_seconds(one.seconds or 0.0, work or (0.0, 0.0, 0.0), 0.0))
    step = next((step for step in outlook.steps if {step.type: step.num_slots} == one.slots), None)
    if step is None:
        return Told(one)
    worth = job.limits.reference_batch if job.scale_invariant else step.global_batch  # of a step, no gain being known
    seconds = job.remaining_samples / worth * step.seconds[1]
    interval = finish_seconds(seconds, work or (job.remaining_samples,) * 3, _relative_error(step))
    forecast = replace(
        one, basis=FORECAST, batch=step.global_batch, samples_per_second=step.global_batch / step.seconds[1],
        seconds=seconds, money=one.price_per_hour * seconds / HOUR,
    )  # fmt: skip
    return Told(forecast, interval)


def _relative_error(step: StepOutlook) -> float:
    """One standard deviation of the step time, as `finish_seconds` takes it."""
    from elastic_core.predict.work.work_left import DEVIATIONS

    low, _, high = step.seconds
    return expm1(log(high / low) / (2.0 * DEVIATIONS))


def _row(told: Told) -> tuple[str, ...]:
    one = told.estimate
    slots = "; ".join(map(str, one.stages)) or " + ".join(f"{count} {kind}" for kind, count in one.slots.items())
    speed = "?" if one.samples_per_second is None else f"{one.samples_per_second:.4g}"
    time = "?" if one.seconds is None else span(one.seconds)
    if told.seconds is not None:
        time += f" ({span(told.seconds[0])} to {span(told.seconds[2])})"
    money = "?" if one.money is None else f"{one.money:.4g}"
    gap = "" if one.gap is None else f", {100 * one.gap:.1f} % above the cheapest as fast"
    return slots, speed, time, money, f"{one.price_per_hour:.4g}", one.basis + gap


def _unknown(spec: JobSpec, told: Sequence[Told]) -> Iterator[str]:
    if not told:
        yield "the pool has no slots that this job may have"
    if any(one.estimate.seconds is None for one in told):
        yield (
            f"not known: what jobs of {spec.entry_point} take on slots of which nothing was measured, or on more than "
            "twice as many as they ran on; a job learns it as it runs"
        )
    if told and not any(one.estimate.price_per_hour for one in told):
        yield "not known: money; no node has a price (price_per_slot_hour in the cluster file)"
    yield "not in it: waiting for slots, starts and resizes"


def _expected(spec: JobSpec, job: JobView, facts: JobFacts, outlook: Outlook, told: Sequence[Told]) -> Iterator[str]:
    """What is expected and not known: the work, step times of other tasks, the passes of progress."""
    total = total_samples(spec, facts.dataset_samples)
    if outlook.work is not None:
        low, _, high = outlook.work
        basis = outlook.work_source
        if not outlook.work_decided:
            basis += ", by which the policy in force does not decide"
        yield (
            f"a forecast ({basis}): where the job ends. Time and money are for {job.total_samples} "
            f"samples of work; 80 % of jobs like it take {low:.0f} to {high:.0f}, and it may take {total}"
        )
    elif not spec.work.end_is_known:
        yield f"not known: where the job ends; time and money are for all of its {total} samples"
    if any(one.estimate.basis == FORECAST for one in told):
        yield (
            f"a forecast from jobs of other tasks: no job of {spec.entry_point} has measured a step there. It "
            f"is for a batch of {spec.batch.base or spec.batch.min}, or a sample a slot where that is more"
        )
    if any(one.seconds is not None for one in told):
        yield "in brackets: where 80 % of the times are expected to lie"
    if spec.work.scale_invariant:
        most = most_samples(spec, total)
        yield (
            f"progress: {total} samples of work are at most {most} samples read, {most / facts.dataset_samples:.3g} "
            f"passes over the data set; {total / facts.dataset_samples:.3g} where the batch stays at its base"
        )
