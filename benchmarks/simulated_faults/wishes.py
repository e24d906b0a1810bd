"""What users and the operator wish while jobs live: pause, resume, stop, set, checkpoint now, cancel many, set a node
aside, take it back. Each goes the way of the product's routes: a call of the service contract, over the network.

Wishes end with the faults: whoever paused a job then resumes it, and nodes are taken back, for as long as late doubles
of what was asked before may arrive. So every job comes to its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from benchmarks.simulated_faults.hub import Process
from elastic_core.domain import JobState
from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.protocol.http_client import HttpControl
from elastic_core.protocol.records import JobStatus
from elastic_core.spec.job_changes import JobChanges

if TYPE_CHECKING:
    from benchmarks.simulated_faults.world import World

FEWEST, MOST = 3, 6
FIRST, LAST = 8.0, 95.0  # seconds
TIDY_SECONDS = 15.0
WHY = "by hand"


class Wishes:
    def __init__(self, world: World, rng: Random, service: HttpControl, process: Process) -> None:
        self._world, self._rng, self._service, self._process = world, rng, service, process
        self.made: Counter[str] = Counter()
        self._kinds: dict[str, Callable[[JobStatus], None]] = {
            "pause": self._pause,
            "stop": lambda job: self._ask(f"stop {job.job_id}", lambda: self._service.stop(job.job_id, WHY)),
            "set": self._set,
            "checkpoint now": lambda job: self._ask(
                f"checkpoint {job.job_id} now", lambda: self._service.checkpoint_now(job.job_id, WHY)
            ),
            "set aside": lambda _: self._set_aside(),
            "cancel many": self._cancel_many,
        }
        kinds = tuple(self._kinds)
        for index in range(rng.randint(FEWEST, MOST)):  # the first two go round: a few seeds see all kinds
            kind = kinds[(world.seed + 3 * index) % len(kinds)] if index < 2 else rng.choice(kinds)
            world.hub.spawn(process, lambda kind=kind: self._wish(kind), rng.uniform(FIRST, LAST))  # type: ignore[misc]

    def _wish(self, kind: str) -> None:
        try:
            jobs = [job for job in self._service.jobs(active_only=False) if job.state is JobState.ACTIVE]
        except ElasticError as refusal:
            return self._world.faults.note(f"a user sees no jobs: {refusal}")
        if jobs and not self._world.faults.over:
            self.made[kind] += 1
            self._kinds[kind](self._rng.choice(jobs))
        return None

    def _ask(self, words: str, call: Callable[[], object]) -> None:
        """That it is refused, or that nobody answers, is no fault."""
        self._world.faults.note(f"somebody wants to {words}")
        try:
            call()
        except ElasticError as refusal:
            self._world.faults.note(f"refused to {words}: {refusal}")

    def _pause(self, job: JobStatus) -> None:
        again = self._rng.uniform(5.0, 60.0)
        self._ask(f"pause {job.job_id}", lambda: self._service.pause(job.job_id, WHY))
        self._world.hub.sleep(again)
        self._ask(f"resume {job.job_id}", lambda: self._service.resume(job.job_id))

    def _set(self, job: JobStatus) -> None:
        fewest, more = self._rng.choice([None, 1, 2]), self._rng.choice([None, 0, 1, 2])
        changes = JobChanges(
            priority=self._rng.choice([None, 0, 1, 5]),
            min_slots=fewest,
            max_slots=None if more is None else (fewest or job.spec.slots.min) + more,
        )
        self._ask(f"set {job.job_id} to {changes.words}", lambda: self._service.set_job(job.job_id, changes))

    def _set_aside(self) -> None:
        node, back = self._rng.choice(sorted(self._world.nodes)), self._rng.uniform(10.0, 60.0)
        self._ask(f"set {node} aside", lambda: self._service.set_aside_node(node, WHY))
        self._world.hub.sleep(back)
        self._ask(f"take {node} back", lambda: self._service.take_back_node(node))

    def _cancel_many(self, job: JobStatus) -> None:
        """One that there is, and one that there is not."""
        named = [job.job_id, "job-of-nobody"]
        self._ask(f"cancel {' and '.join(named)}", lambda: self._service.cancel_jobs(named, WHY))

    def end(self) -> None:
        self._world.hub.spawn(self._process, self._tidy)

    def _tidy(self) -> None:
        while True:
            try:
                for job in self._service.jobs(active_only=True):
                    if job.paused is not None and not job.paused.ends:
                        self._service.resume(job.job_id)
                for node in self._service.nodes():
                    if node.set_aside_at is not None:
                        self._service.take_back_node(node.name)
            except InfrastructureError:
                pass  # the next time is the retry
            except ElasticError as refusal:  # e.g. the job has ended meanwhile
                self._world.faults.note(f"refused to tidy up: {refusal}")
            self._world.hub.sleep(TIDY_SECONDS)
