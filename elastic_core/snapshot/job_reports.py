"""From a job's reports to what a decision may know of them: step times by configuration, and gradient noise.

A step is slowed by whatever else runs on its hosts and by nothing made faster, so that a configuration's time is the
lower quartile of its reports: a job measured beside a busy neighbour is not taken for one that scales badly. Only the
latest reports count, so that a long job costs no more than a short one.

This is the definition. Decisions keep what they have read (`control.scheduling.report_windows`), whoever else asks gets
the same by SQL (`control.ledger.profiles`), and the simulator sums up run by run (`sim.engine.running`); tests hold the
first two to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import floor, isnan

from elastic_core.domain import Observation, PlacedSpeed, ProfilePoint, Stages
from elastic_core.domain.number_ranges import NOISE_SCALE, NORM, STEP_SECONDS

RECENT = 3000  # reports of a job that its profile is made of
NOISE_WINDOW = 50  # reports that its gradient noise scale is averaged over
QUARTILE = 0.25
MOST_CONFIGURATIONS = 256  # of a profile: a job's own code says how it cut its batch, and each one is fitted to
MOST_COUNT = 64  # reports of a configuration; more teach a model of it nothing

# When a trainer reports: after so many seconds, or after so many steps if those took a while.
REPORT_SECONDS = 2.0
REPORT_STEPS = 20
REPORT_LEAST_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a job's latest reports say. `noise_scale` in samples; None where it was not measured."""

    profile: tuple[ProfilePoint, ...] = ()
    noise_scale: float | None = None
    placed_speeds: tuple[PlacedSpeed, ...] = ()  # of a placed job, which has no profile


def seconds_between_reports(step_seconds: float) -> float:
    """Of a trainer whose steps take so long."""
    return max(step_seconds, min(REPORT_SECONDS, max(REPORT_STEPS * step_seconds, REPORT_LEAST_SECONDS)))


def shown_count(reports: int) -> int:
    """In powers of two, at most `MOST_COUNT`: so a model is not fitted again at every report that changes nothing."""
    return 1 << (min(reports, MOST_COUNT).bit_length() - 1)


def as_profile(points: Iterable[ProfilePoint]) -> tuple[ProfilePoint, ...]:
    """The points of each configuration, whose `count` is all of its latest reports, as policies get them: sorted, and
    where there are too many those that were reported most."""
    shown = sorted((replace(point, count=shown_count(point.count)) for point in points), key=_configuration)
    if len(shown) > MOST_CONFIGURATIONS:
        most = sorted(shown, key=lambda point: -point.count)[:MOST_CONFIGURATIONS]
        shown = sorted(most, key=_configuration)
    return tuple(shown)


def _configuration(point: ProfilePoint) -> tuple[object, ...]:
    layout = point.layout
    partition = () if layout is None else (layout.data, layout.tensor, layout.pipeline, layout.sharded)
    return (
        point.num_slots, point.num_nodes, point.type, point.global_batch, point.local_batch, point.accumulation,
        partition, point.roles, point.server_cores, point.comm,
    )  # fmt: skip


def measured(reports: Sequence[Observation]) -> Measured:
    """Of all of a job's reports, the oldest first."""
    return Measured(profile=profile(reports), noise_scale=noise_scale(reports), placed_speeds=placed_speeds(reports))


def profile(reports: Sequence[Observation]) -> tuple[ProfilePoint, ...]:
    """Reports whose step time is out of its range count for nothing."""
    by_configuration: dict[ProfilePoint, list[Observation]] = {}
    timed = [report for report in reports if STEP_SECONDS.holds(report.step_seconds) and not report.stages]
    for report in timed[-RECENT:]:
        configuration = ProfilePoint(
            num_slots=report.num_slots, num_nodes=report.num_nodes, type=report.type,
            global_batch=report.global_batch, local_batch=report.local_batch, accumulation=report.accumulation,
            layout=report.layout, comm=report.comm, step_seconds=0.0, sync_seconds=0.0, count=0,
        )  # fmt: skip
        by_configuration.setdefault(configuration, []).append(report)
    return as_profile(
        replace(
            configuration,
            step_seconds=lower_quartile([report.step_seconds for report in latest]),
            sync_seconds=lower_quartile([report.sync_seconds for report in latest]),
            count=len(latest),
        )
        for configuration, latest in by_configuration.items()
    )


def placed_speeds(reports: Sequence[Observation]) -> tuple[PlacedSpeed, ...]:
    """The same of the reports under stages: those of a placed job. The global batch there never changes."""
    by_stages: dict[Stages, list[Observation]] = {}
    for report in [one for one in reports if STEP_SECONDS.holds(one.step_seconds) and one.stages][-RECENT:]:
        by_stages.setdefault(report.stages, []).append(report)
    return as_placed_speeds(
        PlacedSpeed(
            stages=stages, count=len(latest),
            samples_per_second=latest[-1].global_batch / lower_quartile([report.step_seconds for report in latest]),
        )
        for stages, latest in by_stages.items()
    )  # fmt: skip


def as_placed_speeds(speeds: Iterable[PlacedSpeed]) -> tuple[PlacedSpeed, ...]:
    """As policies get them."""
    shown = (replace(speed, count=shown_count(speed.count)) for speed in speeds)
    return tuple(sorted(shown, key=lambda speed: [(*one.layers, one.type, one.num_slots) for one in speed.stages]))


def lower_quartile(values: Sequence[float]) -> float:
    """Between the two values that are nearest; NaN is greater than any number."""
    ordered = sorted(values, key=lambda value: (isnan(value), value))
    place = QUARTILE * (len(ordered) - 1)
    below = floor(place)
    if place == below:
        return ordered[below]
    return ordered[below] + (place - below) * (ordered[below + 1] - ordered[below])


def noise_scale(reports: Sequence[Observation]) -> float | None:
    """B_simple = tr(cov g) / |E g|^2, both averaged before dividing (McCandlish et al. 2018, appendix A).

    None where it was not measured, or |E g|^2 came out as zero or less. Reports out of range count for nothing.
    """
    estimates = [
        (report.grad_sqr, report.grad_var)
        for report in reports
        if report.grad_sqr is not None and report.grad_var is not None
        and NORM.holds(report.grad_sqr) and NORM.holds(report.grad_var)
    ]  # fmt: skip
    return mean_noise_scale([(sqr, var, 1) for sqr, var in estimates[-NOISE_WINDOW:]])


def mean_noise_scale(estimates: Sequence[tuple[float, float, int]]) -> float | None:
    """Of (|E g|^2, tr(cov g), number of reports that say so)."""
    count = sum(reports for _, _, reports in estimates)
    if not count:
        return None
    sqr = sum(sqr * reports for sqr, _, reports in estimates) / count
    var = sum(var * reports for _, var, reports in estimates) / count
    scale = var / sqr if sqr > 0 and var >= 0 else None
    return scale if scale is not None and NOISE_SCALE.holds(scale) else None
