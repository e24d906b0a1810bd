"""`python -m examples.demo`: exit code 0 when everything that it promises was seen to happen."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live

from elastic_core.domain import JobState
from elastic_core.errors import ElasticError, NotFound
from elastic_core.protocol.records import JobStatus
from examples.demo import live, report
from examples.demo.ends import Classes
from examples.demo.jobs import Plan, job_ids, sized_spec
from examples.demo.services import Platform, platform


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the services running")
    parser.add_argument("--running", action="store_true", help="use the services that the settings name; start none")
    parser.add_argument("--seconds", type=float, default=900.0, help="give up after this long")
    options = parser.parse_args()
    console, started = Console(), time.monotonic()
    if not console.is_terminal:
        console = Console(width=140)
    deadline = started + options.seconds
    plans = job_ids(time.time())
    specs = {job_id: sized_spec(plan) for job_id, plan in plans.items()}
    for job_id, spec in specs.items():
        target = spec["work"].get("target_loss")
        until = "" if target is None else f" at most, until its loss is {target:g}"
        console.print(f"{job_id}: {spec['entry_point']}, {spec['work']['epochs']} epochs{until}", highlight=False)
    try:
        with platform(console, options.keep, options.running) as there:
            console.print(f"services are up after {time.monotonic() - started:.0f} s")
            classes = watch(console, there, plans, specs, deadline)
            outcomes = gather(console, there, plans, classes)
            for outcome in outcomes:
                report.show(console, outcome)
            report.addresses(console, there.settings, outcomes, options.keep or options.running)
    except ElasticError as error:
        console.print(f"the demo could not go on: {error}", style="red", markup=False)
        return 2
    failed = 0
    for claim in report.claims(len(plans), outcomes):
        failed += not claim.holds
        mark = "[green]yes[/]" if claim.holds else "[red]NO [/]"
        console.print(f"{mark} {claim.words}" + (f" ({claim.detail})" if claim.detail else ""), highlight=False)
    console.print(
        f"{'everything held' if not failed else f'{failed} did not hold'}; {time.monotonic() - started:.0f} s"
    )
    return 1 if failed else 0


def watch(
    console: Console,
    there: Platform,
    plans: Mapping[str, Plan],
    specs: Mapping[str, Mapping[str, Any]],
    deadline: float,
) -> Classes:
    """Submit the jobs one after another and show them until all have ended, or the time is over.

    Returns the classes that jobs of unknown end had.
    """
    waiting, began, classes = list(plans), time.monotonic(), Classes(plans)
    submitted: list[str] = []
    jobs: dict[str, JobStatus | None] = dict.fromkeys(plans)
    nodes = [node for node in there.control.snapshot().nodes if node.present]
    told: dict[str, str] = {}
    with Live(console=console, refresh_per_second=4, transient=not console.is_terminal) as view:
        while time.monotonic() < deadline:
            if waiting and (not submitted or arrived(jobs[submitted[-1]], plans[submitted[-1]])):
                there.start_job(waiting[0], specs[waiting[0]])
                submitted.append(waiting.pop(0))
            for job_id in submitted:
                jobs[job_id] = find(there, job_id)
            classes.look(there, jobs)
            if console.is_terminal:
                view.update(live.picture(nodes, jobs, time.monotonic() - began))
            elif (now := live.holdings(jobs)) != told:
                told = now
                console.print(f"{time.monotonic() - began:5.0f} s  {live.line(jobs)}", highlight=False)
            if not waiting and all(there.run_state(job_id) in ("success", "failed") for job_id in submitted):
                return classes
            time.sleep(1.0)
    console.print("the time is over: cancelling what still runs", style="red")
    for job_id in submitted:
        job = jobs[job_id]
        if job is not None and job.state is JobState.ACTIVE:
            there.control.cancel(job_id, "the demo's time is over")
    return classes


def gather(console: Console, there: Platform, plans: Mapping[str, Plan], classes: Classes) -> list[report.Outcome]:
    outcomes = []
    for job_id, plan in plans.items():
        try:
            outcomes.append(report.gather(there, job_id, plan, classes.probabilities.get(job_id)))
        except NotFound:
            console.print(f"{job_id} was never submitted: see the log of its task `submit` in Airflow", style="red")
    return outcomes


def find(there: Platform, job_id: str) -> JobStatus | None:
    """None until Airflow's first task has written the job to the ledger."""
    try:
        return there.control.job(job_id)
    except NotFound:
        return None


def arrived(job: JobStatus | None, plan: Plan) -> bool:
    """The job before has trained for a while, or is over, however little it had to do."""
    if job is None:
        return False
    return job.state is not JobState.ACTIVE or job.done_samples >= plan.next_at * job.total_samples


if __name__ == "__main__":
    sys.exit(main())
