"""What is checked after every event: the ledger's history, and what it says against what is true of processes, store,
Airflow and MLflow. `invariants` and their numbers are those of docs/design/invariants.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import undefer

from benchmarks.common.ledger_history import LedgerHistory, Picture, Violation
from benchmarks.simulated_faults.tracking import Held
from elastic_core.control.ledger.tables import DecisionRow
from elastic_core.domain import Plan, Snapshot, from_json
from elastic_core.policy.plans.plan_check import violations
from elastic_core.state.stores.paths import MANIFEST

if TYPE_CHECKING:
    from benchmarks.simulated_faults.world import World


class Promises:
    def __init__(self, world: World) -> None:
        self._world = world
        self._history = LedgerHistory(world.database.admin)
        self._judged = 0  # the last decision that was made again
        self._failed = 0  # tasks
        self._held = Held(world.mlflow, lambda after: world.judge.feed.events(after))
        self.checks = 0

    @property
    def picture(self) -> Picture:
        assert self._history.last is not None
        return self._history.last

    def after_an_event(self) -> list[Violation]:
        self.checks += 1
        found = self._history.check()
        picture = self.picture
        found += [*self._processes(picture), *self._store(picture), *self._decisions(picture), *self._errors()]
        return found

    def _processes(self, picture: Picture) -> Iterator[Violation]:
        """1: where a process is, its chain holds the slot, or the node has left; and no two are on one slot."""
        holders = {row["slot"]: picture.leases[row["epoch"]]["origin"] for row in picture.held}
        on: dict[str, int] = {}
        for group in self._world.launcher.known.values():
            group.excused |= picture.absent
            for slot in group.occupied:
                name = f"{slot.node}:{slot.index}"
                if name in on:
                    yield Violation(1, f"processes of epochs {on[name]} and {group.origin} are both on slot {name}")
                on[name] = group.origin
                if holders.get(name) != group.origin and name not in group.excused:
                    holder = f"held by {holders[name]}" if name in holders else "free"
                    why = [(n, lease["why"]) for n, lease in picture.leases.items() if lease["origin"] == group.origin]
                    what = f"slot {name} is {holder} while a process of epoch {group.origin} is on it: {why}"
                    yield Violation(1, what)

    def _store(self, picture: Picture) -> Iterator[Violation]:
        """4: what the ledger shows is in the store, complete and as it was committed."""
        disk = self._world.disk
        damaged = {key.rpartition("/")[0] for key in disk.damaged}
        for number, row in picture.checkpoints.items():
            if row["bad"] or row["swept"] is not None or number in self._world.airflow.to_be_swept:
                continue
            if row["uri"] not in damaged and f"{row['uri']}/{MANIFEST}" not in disk.objects:
                yield Violation(4, f"checkpoint {number} ({row['uri']}) is in the ledger, and not whole in the store")

    def _decisions(self, picture: Picture) -> Iterator[Violation]:
        """6 and 8: made again from its inputs a decision is the same; one that failed failed for a reason we know."""
        if picture.last_decision == self._judged:
            return
        judge = self._world.judge
        query = select(DecisionRow).options(undefer(DecisionRow.snapshot)).where(DecisionRow.id > self._judged)
        rows = judge._ledger.read(lambda tx: list(tx.session.scalars(query.order_by(DecisionRow.id))))
        for row in rows:
            self._judged = row.id
            if not judge.replay(row.id).same:
                yield Violation(6, f"decision {row.id} (version {row.version}) is another one when it is made again")
            snapshot, plan = from_json(Snapshot, row.snapshot), from_json(Plan, row.plan)
            if wrong := violations(plan, snapshot):
                yield Violation(8, f"decision {row.id} is in force and invalid: {'; '.join(wrong)}")
            if (row.failure is not None) != self._world.policy_fails(row.wanted, snapshot):
                yield Violation(8, f"decision {row.id} by {row.wanted}: failure {row.failure!r}")
            if row.failure is not None and row.policy != "fair_share":
                yield Violation(8, f"decision {row.id} failed, and {row.policy} decided instead of fair_share")

    def _errors(self) -> Iterator[Violation]:
        """8: nothing fails in a way that nobody has a word for."""
        world = self._world
        for server in world.servers:
            while server.unexpected:
                yield Violation(8, server.unexpected.pop(0))
        while world.airflow.unexpected:
            yield Violation(8, world.airflow.unexpected.pop(0))
        for name, error in world.hub.failures[self._failed :]:
            yield Violation(8, f"a task of {name} ended with {type(error).__name__}: {error}")
        self._failed = len(world.hub.failures)
        for hostile in world.faults.hostile:
            while hostile.wrong:
                yield Violation(2, hostile.wrong.pop(0))
        yield from (Violation(9, wrong) for wrong in world.mlflow.wrong)

    # when faults are over

    def disagreements(self) -> list[Violation]:
        """9: what ledger, processes, Airflow and MLflow do not agree on; nothing once all is put right."""
        self._history.check()
        picture = self.picture
        found = [*self._undecided(picture), *self._chains(picture), *self._runs(picture)]
        return found or [*self._tracked()]

    def _undecided(self, picture: Picture) -> Iterator[Violation]:
        if picture.version != picture.decided:
            yield Violation(7, f"version {picture.version} is not decided, the last that was is {picture.decided}")
        for job in self._world.judge.jobs(active_only=True):
            if not job.target_reason:
                yield Violation(7, f"{job.job_id} is {job.segment_state} and does not say why")

    def _chains(self, picture: Picture) -> Iterator[Violation]:
        known = self._world.launcher.known
        origins = {lease["origin"] for lease in picture.live()}
        for group in known.values():
            if group.alive and group.origin not in origins:
                yield Violation(9, f"processes of epoch {group.origin} are alive without a lease")
        for lease in picture.live():
            group = known.get(lease["origin"])
            if (group is not None and not group.alive) or (group is None and lease["fenced"] is not None):
                yield Violation(9, f"epoch {lease['epoch']} holds slots, and its processes are gone")

    def _runs(self, picture: Picture) -> Iterator[Violation]:
        airflow = self._world.airflow
        for segment in picture.segments.values():
            is_open = segment["state"] in ("created", "waiting", "granted", "running")
            if is_open and airflow.segment_runs.get(segment["id"], True):
                yield Violation(9, f"{segment['id']} is {segment['state']} and has no run in Airflow")
            if not is_open and not airflow.segment_runs.get(segment["id"], True):
                yield Violation(9, f"{segment['id']} is {segment['state']} and its run in Airflow goes on")
        for job in picture.jobs.values():
            run = airflow.runs.get(job["id"])
            wanted = {"active": None, "finished": True}.get(job["state"], False)
            succeeded = job["state"] == "cancelled" and run is not None and run.succeeded
            if succeeded and airflow.saw_end_of[job["id"]] < job["lineage"]:
                continue  # rolled back after its end, and cancelled before its run was begun anew
            if run is None or run.succeeded is not wanted:
                yield Violation(9, f"{job['id']} is {job['state']}, and its run in Airflow is {run and run.succeeded}")

    def _tracked(self) -> Iterator[Violation]:
        if lost := self._held.missing():
            yield Violation(9, f"MLflow does not hold the events at {lost[:5]}")
