"""The simulated users: they submit jobs, and now and then cancel, revive, revoke or roll back one. What they wish of
jobs and nodes beside that, and take back again, is in `wishes`.

As long as faults last there is something for them to hit: when fewer than two jobs are under way, another one comes. So
it does afterwards, where little has happened yet: jobs that are stopped or cancelled early leave little to look at.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from benchmarks.simulated_faults.wishes import Wishes
from elastic_core.domain import JobState
from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.spec import JobSpec
from tests.builders import a_spec

if TYPE_CHECKING:
    from benchmarks.simulated_faults.world import World

MOST_ACTS = 3
FEWEST_ACTIVE, LOOK_SECONDS, LAST_LOOK = 2, 10.0, 80.0
FEWEST_CHANGES = 100  # transactions that wrote, of a seed


class Users:
    def __init__(self, world: World, rng: Random) -> None:
        self._world, self._rng = world, rng
        self._service = world.service("users")
        self._process = world.hub.process("users", "users")
        self.still_to_come = self._jobs = 0
        self.may_come = True  # beside those: another job
        for number in range(rng.randint(3, 4)):
            self._come(rng.uniform(0.0, 30.0) if number else 0.0)
        world.hub.spawn(self._process, self._keep_busy)
        for _ in range(rng.randint(0, MOST_ACTS)):
            world.hub.spawn(self._process, self._act, rng.uniform(15.0, 95.0))
        self.wishes = Wishes(world, world.rng("wishes"), self._service, self._process)

    def _spec(self) -> JobSpec:
        low = self._rng.choice([1, 1, 2])
        return a_spec(
            slots=(low, self._rng.choice([2, 3, 4])), batch=(16, 64), seed=self._rng.randrange(1000),
            work={"samples": self._rng.randrange(200, 500)}, priority=self._rng.choice([0, 0, 1]),
            segment={"steps": self._rng.choice([6, 12, 25])}, checkpoints={"keep_last": 2, "keep_best": 1},
        )  # fmt: skip

    def _come(self, after: float = 0.0) -> None:
        job_id, spec = f"job-{self._jobs}", self._spec()
        self._jobs += 1
        self.still_to_come += 1
        self._world.hub.spawn(self._process, lambda: self._submit(job_id, spec), after)

    def _keep_busy(self) -> None:
        while self._world.hub.now < LAST_LOOK or self._world.database.writes < FEWEST_CHANGES:
            self._world.hub.sleep(LOOK_SECONDS)
            jobs = self._world.promises.picture.jobs.values()
            if not self.still_to_come and sum(job["state"] == "active" for job in jobs) < FEWEST_ACTIVE:
                self._come()
        self.may_come = False

    def _submit(self, job_id: str, spec: JobSpec) -> None:
        while True:
            try:
                self._service.start_job(job_id, spec)
            except InfrastructureError:
                self._world.hub.sleep(5.0)
            except ElasticError as refusal:
                self._world.faults.note(f"{job_id} is refused for now: {refusal}")
                self._world.hub.sleep(20.0)  # e.g. while a node is away
            else:
                self.still_to_come -= 1
                return

    def _act(self) -> None:
        """Whatever a user may do to a job; that it is refused is no fault."""
        try:
            jobs = self._service.jobs(active_only=False)
            if not jobs:
                return
            job = self._rng.choice(jobs)
            act = self._rng.choice(["cancel", "revive", "revive", "revoke", "rollback", "rollback"])
            self._world.faults.note(f"a user wants to {act} {job.job_id}")
            if act == "cancel":
                self._service.cancel(job.job_id, "by hand")
            elif act == "revive" and job.state is not JobState.FINISHED:
                self._service.revive(job.job_id)
            elif act == "revoke":
                self._service.revoke(job.segment_id, "by hand")
            elif act == "rollback" and (found := self._service.checkpoints(job.job_id)):
                self._service.rollback(job.job_id, self._rng.choice(found).checkpoint_id)
        except ElasticError as refusal:
            self._world.faults.note(f"a user is refused: {refusal}")
