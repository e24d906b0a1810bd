"""`elastic jobs estimate`: what a job would take in time and money on each choice of slots, before it is launched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from elastic_core.commands.opening import open_api
from elastic_core.commands.printing import Json, print_json, print_table
from elastic_core.domain import JobView, SegmentState, Snapshot, to_json
from elastic_core.errors import UserError
from elastic_core.protocol.records import JobFacts
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec, parse_job_spec, total_samples
from elastic_core.spec.inputs.value_files import read_values
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
_out = Console(highlight=False, soft_wrap=True)


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


def estimate(
    spec: Annotated[Path, typer.Argument(help="file with the job spec: JSON, or YAML by its name")],
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """Time and money of a job on each choice of slots, before it is submitted, and what is not known of it."""
    from elastic_core.placement import bundles
    from elastic_core.policy.base.placed_jobs import pool_types
    from elastic_core.policy.horizon.estimates import estimates

    parsed = parse_job_spec(with_profile(read_values(spec, "job spec"), profile))
    facts = _facts(parsed)
    pool = open_api(Settings()).snapshot()
    job = _view(parsed, facts, pool)
    if job.limits.placed is not None:
        bundles.check(job.limits.placed, pool_types(pool.nodes), parsed.slots.types, parsed.slots.counts())
    found = estimates(job, pool)
    if as_json:
        print_json([to_json(one) for one in found])
        return
    print_table(("slots", "samples/s", "time", "money", "an hour", "known"), (_row(one) for one in found))
    for line in _unknown(parsed, job, found):
        _out.print(line, markup=False)


def _facts(spec: JobSpec) -> JobFacts:
    """Asked of the task's code only where the spec does not say it."""
    given = spec.placement_profile is not None and spec.placement_profile.layers
    if spec.work.samples is not None and (given or not spec.places_layers):
        return JobFacts(dataset_samples=spec.work.samples)
    from elastic_core.train.process.inspect import inspect_job

    return inspect_job(spec, Settings())


def _view(spec: JobSpec, facts: JobFacts, pool: Snapshot) -> JobView:
    from elastic_core.placement.placed_models import limits_of

    return JobView(
        job_id="estimate", name=spec.name, queue=spec.queue, priority=spec.priority, submitted_at=pool.now,
        deadline=None, limits=limits_of(spec, facts), total_samples=total_samples(spec, facts.dataset_samples),
        done_samples=0, segment_id="estimate__seg_0", segment_state=SegmentState.WAITING, waiting_since=pool.now,
        task=spec.entry_point, scale_invariant=spec.work.scale_invariant,
    )  # fmt: skip


def _row(one: Estimate) -> tuple[str, ...]:
    slots = "; ".join(map(str, one.stages)) or " + ".join(f"{count} {kind}" for kind, count in one.slots.items())
    speed = "?" if one.samples_per_second is None else f"{one.samples_per_second:.4g}"
    time = "?" if one.seconds is None else span(one.seconds)
    money = "?" if one.money is None else f"{one.money:.4g}"
    gap = "" if one.gap is None else f", {100 * one.gap:.1f} % above the cheapest as fast"
    return slots, speed, time, money, f"{one.price_per_hour:.4g}", one.basis + gap


def _unknown(spec: JobSpec, job: JobView, found: Sequence[Estimate]) -> Iterator[str]:
    if not found:
        yield "the pool has no slots that this job may have"
    if any(one.seconds is None for one in found):
        yield (
            f"not known: what jobs of {spec.entry_point} take on slots of which nothing was measured, or on more than "
            "twice as many as they ran on; a job learns it as it runs"
        )
    if found and not any(one.price_per_hour for one in found):
        yield "not known: money; no node has a price (price_per_slot_hour in the cluster file)"
    if not spec.work.end_is_known:
        yield f"not known: where the job ends; time and money are for all of its {job.total_samples} samples"
    yield "not in it: waiting for slots, starts and resizes"
