"""From the state that a pool is in: how its active jobs would fare, as things are and with something changed.

The simulator begins where the jobs stand, and the policy sees of them what it sees in production: their slots, the work
they have done, the service they have had, what they have spent, the speeds they have measured, and what it remembers.
What a job is yet to do is what it declares, or the median of the work left that the policy in force decides by, which
is what is shown of it; the policy is told no more of that than in production: the forecast. A job that holds slots goes
on with them until the policy moves it. Nobody submits, nothing fails, no resize costs another time than the job's mean:
a forecast, not a promise. So what is far away is looked at less closely (`COARSER`): a policy that looks every minute
would decide thousands of times about jobs of days, and the time for the answer would be over after their first hours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from elastic_core.domain import JobView, Node, Slot, Snapshot, WorkLeft
from elastic_core.errors import UserError
from elastic_core.placement.placed_models import limits_of
from elastic_core.policy import registry
from elastic_core.policy.base.policy import decided_work
from elastic_core.policy.rules.paused_jobs import without_paused
from elastic_core.predict.speed.throughput import StepTime
from elastic_core.predict.work.work_left import work_left
from elastic_core.protocol.rest.what_if import COURSE_SECONDS, Course, JobAhead, MeanEnds, WhatIf, WhatIfAnswer
from elastic_core.protocol.service import ServiceControl
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.engine.result import Held, JobResult, Result
from elastic_core.sim.ground_truth.physics import Physics
from elastic_core.sim.ground_truth.placed_physics import PlacedPhysics
from elastic_core.sim.ground_truth.workload import SimJob, Workload, workload
from elastic_core.sim.replay import FittedPhysics, slowness
from elastic_core.text import plural

MOST_JOBS = 500
MOST_ADDED_SLOTS = 10_000
COARSER = 0.05  # as `Options.coarser`: ends stay within a tenth of those of a course that looks every minute, mostly
FEW_JOBS = 100  # of more than these, ends are decided on together: as `Options.ends_apart`, for each job more
ENDS_APART = 0.0001


def what_if(
    control: ServiceControl,
    asked: WhatIf,
    max_seconds: float = COURSE_SECONDS,
    tell: Callable[[int], None] | None = None,
) -> WhatIfAnswer:
    """Both courses, of every active job that is not paused. Changes nothing. `tell` is told how many jobs there are,
    before they are simulated.

    Raises `UserError` for a policy, node or limit that there is not, `NotFound` for a job that there is not.
    """
    began = time.perf_counter()
    snapshot = control.snapshot()
    policy = control.policy().policy
    changed_policy = asked.policy or policy
    registry.get(changed_policy)  # before the first course is simulated
    otherwise = replace(snapshot, nodes=_nodes(snapshot.nodes, asked), jobs=_changed_jobs(control, snapshot, asked))
    if len(snapshot.jobs) > MOST_JOBS:
        raise UserError(f"{len(snapshot.jobs)} jobs are active; at most {MOST_JOBS} can be simulated at once")
    if tell is not None:
        tell(len(_wanting(snapshot)))
    decided = work_decided(snapshot, policy)
    as_it_is, first = _timed(lambda: course(snapshot, policy, max_seconds, decided))
    if changed_policy != policy:
        otherwise = replace(otherwise, policy_state={})  # it would begin without memory, as a change of policy does
    same = (otherwise, changed_policy) == (snapshot, policy)
    changed, second = as_it_is, 0.0
    if not same:
        changed, second = _timed(lambda: course(otherwise, changed_policy, max_seconds, decided))
    before, after = _fares(as_it_is), _fares(changed)
    jobs = tuple(JobAhead(job_id=job, as_it_is=before[job], changed=after[job]) for job in before)
    return WhatIfAnswer(
        at=snapshot.now,
        policy=policy,
        changed_policy=changed_policy,
        jobs=jobs,
        total=len(jobs),
        means=_means(jobs, snapshot.now),
        complete=as_it_is.complete and changed.complete,
        notes=tuple(_notes(snapshot)),
        took_seconds=time.perf_counter() - began,
        course_seconds=(first,) if same else (first, second),
    )


def _timed(simulated: Callable[[], Result]) -> tuple[Result, float]:
    began = time.perf_counter()
    return simulated(), time.perf_counter() - began


def _means(jobs: Sequence[JobAhead], now: float) -> MeanEnds | None:
    ends = [(job.as_it_is.ends_at, job.changed.ends_at) for job in jobs]
    known = [(before - now, after - now) for before, after in ends if before is not None and after is not None]
    if not known:
        return None
    before, after = (sum(column) / len(known) for column in zip(*known, strict=True))
    return MeanEnds(jobs=len(known), as_it_is=before, changed=after)


def work_decided(snapshot: Snapshot, policy: str) -> Mapping[str, WorkLeft]:
    """By job: what this policy, whose state the snapshot has, decides by."""
    return decided_work(registry.get(policy), without_paused(snapshot)[0])


def course(
    snapshot: Snapshot, policy: str, max_seconds: float = COURSE_SECONDS, decided: Mapping[str, WorkLeft] | None = None
) -> Result:
    """The jobs of the snapshot, on its nodes, to their ends under the policy whose state the snapshot has; or as far as
    that time is enough for. `decided`: their work left, where it is not this policy's."""
    tied = any(view.tied_to is not None for view in snapshot.jobs)
    ends_apart = ENDS_APART * max(0, len(snapshot.jobs) - FEW_JOBS)
    options = Options(
        noise=0.0, max_seconds=max_seconds, starving=True, tied=tied, coarser=COARSER, ends_apart=ends_apart
    )
    decided = work_decided(snapshot, policy) if decided is None else decided
    return simulate(workload_of(snapshot, decided), snapshot.nodes, registry.get(policy), options)


def workload_of(snapshot: Snapshot, decided: Mapping[str, WorkLeft]) -> Workload:
    """Times are the snapshot's own. A job whose slots are on no node that is present waits."""
    asked, _ = without_paused(snapshot)
    there = set(asked.slots())
    jobs = [_job(view, work_of(view, decided.get(view.job_id)), held=_holds(view, there)) for view in asked.jobs]
    return replace(workload("ahead", jobs), queues=asked.queues, begins=asked)


def _holds(view: JobView, there: set[Slot]) -> bool:
    return view.allocation is not None and there.issuperset(view.allocation.slots)


def work_of(view: JobView, decided: WorkLeft | None) -> float:
    """All of it by the median of what is left, at least one sample more than is done."""
    (_, left, _), _ = work_left(view, decided)
    return view.done_samples + max(left, 1.0)


def _wanting(snapshot: Snapshot) -> list[JobView]:
    return [view for view in snapshot.jobs if not view.paused]


def _job(view: JobView, work: float, *, held: bool) -> SimJob:
    return SimJob(
        job_id=view.job_id,
        task=view.task,
        submitted_at=view.submitted_at,
        physics=_physics(view, work),
        limits=view.limits,
        queue=view.queue,
        priority=view.priority,
        deadline=view.deadline,
        declared=view.total_samples is not None,
        predictable=view.predictable,
        work_forecast=view.work_forecast,
        reported_noise=None if view.scale_invariant else view.noise_scale or 0.0,
        learnt=view.throughput,
        measured_before=view.profile,
        held=view.allocation if held else None,
    )


def _physics(view: JobView, work: float) -> Physics:
    if view.limits.placed is not None:
        slower = slowness(view.placed_speeds, view.limits.placed)
        return PlacedPhysics(view.limits.placed, work, view.resize_seconds, slower)
    noise = (view.noise_scale or 0.0) if view.scale_invariant else None
    return FittedPhysics(StepTime.of(view.throughput, view.limits), view.limits, work, view.resize_seconds, noise)


def _nodes(nodes: Sequence[Node], asked: WhatIf) -> tuple[Node, ...]:
    known = {node.name for node in nodes if node.present}
    for name in asked.without:
        if name not in known:
            raise UserError(f"there is no node {name!r} to leave out; there are {', '.join(sorted(known)) or 'none'}")
    prices = {node.type: node.price_per_slot_hour for node in nodes}
    added: list[Node] = []
    for group in asked.add:
        if not group.type or group.num_slots < 1 or group.count < 1:
            raise UserError(f"{group.count} nodes of {group.num_slots} slots of type {group.type!r} cannot be added: "
                            "each number is at least 1, and a type has a name")  # fmt: skip
        if group.num_slots * group.count > MOST_ADDED_SLOTS:
            raise UserError(f"{group.num_slots * group.count} more slots are too many: at most {MOST_ADDED_SLOTS}")
        added += [
            Node(name=f"added-{group.type}-{index}", type=group.type, num_slots=group.num_slots,
                 price_per_slot_hour=prices.get(group.type, 0.0))
            for index in range(len(added), len(added) + group.count)
        ]  # fmt: skip
    return tuple(node for node in nodes if node.name not in asked.without) + tuple(added)


def _changed_jobs(control: ServiceControl, snapshot: Snapshot, asked: WhatIf) -> tuple[JobView, ...]:
    changed: dict[str, JobView] = {}
    views = {view.job_id: view for view in snapshot.jobs}
    for job_id, changes in asked.jobs.items():
        job = control.job(job_id)
        if job_id not in views:
            raise UserError(
                f"job {job_id} is {job.state}, and neither holds nor wants slots now: nothing can be changed for it"
            )
        spec = changes.after(job.changes).applied(job.spec)
        changed[job_id] = replace(views[job_id], priority=spec.priority, limits=limits_of(spec, job.facts))
    return tuple(changed.get(view.job_id, view) for view in snapshot.jobs)


def _fares(result: Result) -> dict[str, Course]:
    held: dict[str, list[Held]] = {}
    for stretch in result.held:
        held.setdefault(stretch.job_id, []).append(stretch)
    return {job.job_id: _course(job, held.get(job.job_id, [])) for job in result.jobs}


def _course(job: JobResult, held: Sequence[Held]) -> Course:
    most = max((sum(stretch.nodes.values()) for stretch in held), default=0)
    return Course(starts_at=job.started_at, ends_at=job.finished_at, most_slots=most, moves=job.resizes)


def _notes(snapshot: Snapshot) -> list[str]:
    jobs = _wanting(snapshot)
    remarks: Mapping[str, list[JobView]] = {
        "declare no amount of work: the median of the work left that is shown of them is taken":
            [job for job in jobs if job.total_samples is None],
        "were never measured: their speed is a guess":
            [job for job in jobs if not job.profile and not job.placed_speeds],
        "are paused, and left out": [job for job in snapshot.jobs if job.paused],
    }  # fmt: skip
    return [f"{_named(found)} {what}" for what, found in remarks.items() if found]


def _named(jobs: Sequence[JobView]) -> str:
    shown = ", ".join(job.job_id for job in jobs[:5]) + (", ..." if len(jobs) > 5 else "")
    return f"{plural(len(jobs), 'job')} ({shown})"
