"""A small real `TrainerControl` in a folder: works between processes, survives kill -9, can be sent away.

It keeps the rules that training relies on: an epoch that is over is fenced, a step never goes back, a commit sent
twice counts once, and each is in the folder of its own step and epoch.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from elastic_core.domain import Allocation, Layout, Observation, PlacedStage, Slot, Stages, from_json, to_json
from elastic_core.errors import Conflict, Fenced, InfrastructureError, UserError
from elastic_core.protocol.process_groups import ExitReport, LaunchOrder
from elastic_core.protocol.records import CheckpointRecord, JobFacts, RestorePoint
from elastic_core.protocol.trainer import Commit, CommitAnswer, Directive, Heartbeat, HeartbeatAnswer
from elastic_core.spec import JobSpec
from elastic_core.state.stores.paths import CheckpointPath


class FolderLedger:
    """`token` is "epoch-<n>"."""

    def __init__(self, folder: Path, token: str = "") -> None:
        self.folder = folder
        self.epoch = int(token.removeprefix("epoch-") or 0)

    # ---- for the test

    def set(self, **values: Any) -> None:
        """directive, reason, away, lease_seconds, epoch, token; next_batches (hand the lease over with them),
        next_slots (hand it over to these slots, by index), next_layouts (in these layouts, as JSON), next_stages (the
        same of stages), to_come (slots in a heartbeat's answer, by index), steady and heartbeat_seconds (say its
        answers), held_from (commits of this step and later ones are not answered)."""
        with self._state() as state:
            state.update(values)

    def read(self) -> dict[str, Any]:
        with self._state() as state:
            return dict(state)

    def commits(self) -> list[Commit]:
        return [from_json(Commit, commit) for commit in self.read()["commits"]]

    def records(self) -> tuple[CheckpointRecord, ...]:
        """Newest first, bad ones too: whether they are used is for the restoring side to find out."""
        return tuple(_record(i, commit) for i, commit in reversed(list(enumerate(self.commits()))))

    def observations(self) -> list[Observation]:
        return [from_json(Observation, observation) for observation in self.read()["observations"]]

    # ---- TrainerControl

    def heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer:
        with self._state() as state:
            self._reachable(state)
            state["beats"].append([beat.step, beat.samples, time.time()])
            if state["epoch"] not in (None, self.epoch):
                return HeartbeatAnswer(directive=Directive.FENCED, reason="another epoch owns it")
            return HeartbeatAnswer(
                directive=Directive(state["directive"]),
                reason=state["reason"],
                lease_seconds=state["lease_seconds"],
                token=state["token"],
                slots=tuple(_slot(index) for index in state["to_come"]),
                steady=state["steady"],
                heartbeat_seconds=state["heartbeat_seconds"],
            )

    def observe(self, observations: Sequence[Observation]) -> None:
        with self._state() as state:
            self._reachable(state)
            state["observations"] += [to_json(observation) for observation in observations]

    def commit(self, commit: Commit) -> CommitAnswer:
        with self._state() as state:
            self._reachable(state)
            if state["held_from"] is not None and commit.step >= state["held_from"]:
                raise InfrastructureError("this commit is not answered")
            if state["lose_answers"] > 0:
                state["lose_answers"] -= 1
                self._accept(state, commit)
                raise InfrastructureError("the answer was lost on its way")
            self._accept(state, commit)
            order = None
            if commit.final and not commit.finished and state["next_batches"]:
                batch = state["next_batches"].pop(0)
                order = _next_order(from_json(LaunchOrder, state["order"]), batch, state["commits"])
            elif commit.final and not commit.finished and state["next_slots"]:
                layout = from_json(Layout, state["next_layouts"].pop(0)) if state["next_layouts"] else None
                slots = state["next_slots"].pop(0)
                stages = from_json(Stages, state["next_stages"].pop(0)) if state["next_stages"] else ()
                order = _resized(from_json(LaunchOrder, state["order"]), slots, layout, stages, state["commits"])
            if order is not None:
                state["order"], state["epoch"], state["directive"] = to_json(order), order.epoch, "go_on"
            going = order is not None or not commit.final
            return CommitAnswer(
                checkpoint_id=len(state["commits"]),
                directive=Directive.GO_ON if going else Directive.BOUNDARY,
                reason="",
                order=order,
            )

    def release_slots(self, slots: Sequence[Slot], epoch: int) -> None: ...

    def mark_bad(self, checkpoint_id: int, why: str) -> None:
        with self._state() as state:
            state["bad"].append([checkpoint_id, why])

    def exited(self, report: ExitReport) -> None: ...

    def _accept(self, state: dict[str, Any], commit: Commit) -> None:
        if any(known["uri"] == commit.uri for known in state["commits"]):
            return
        if state["epoch"] not in (None, self.epoch):
            raise Fenced(f"epoch {self.epoch} is over")
        path = CheckpointPath.parse(commit.uri)
        if path is None or not path.is_writers or (path.step, path.epoch) != (commit.step, self.epoch):
            raise UserError(f"{commit.uri} is not the folder of step {commit.step} under epoch {self.epoch}")
        bad = {number for number, _ in state["bad"]}  # what was found corrupt counts for nothing
        good = [known["step"] for number, known in enumerate(state["commits"]) if number not in bad]
        if good and commit.step < good[-1]:
            raise Conflict(f"step {commit.step} goes back")
        state["commits"].append(to_json(commit))

    def _reachable(self, state: dict[str, Any]) -> None:
        if state["away"]:
            raise InfrastructureError("nobody answers")

    @contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "ledger.json"
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = json.loads(path.read_text()) if path.exists() else new_state()
            try:
                yield state
            finally:
                path.with_suffix(".new").write_text(json.dumps(state))
                path.with_suffix(".new").replace(path)


def new_state() -> dict[str, Any]:
    return {
        "directive": "go_on", "reason": "", "away": False, "lease_seconds": 60.0, "next_batches": [], "epoch": None,
        "token": None, "commits": [], "observations": [], "beats": [], "bad": [], "lose_answers": 0, "order": None,
        "next_slots": [], "next_layouts": [], "next_stages": [], "to_come": [], "steady": False,
        "heartbeat_seconds": None, "held_from": None,
    }  # fmt: skip


def make_order(
    spec: JobSpec,
    *,
    slots: int,
    batch: int,
    epoch: int = 1,
    records: tuple[CheckpointRecord, ...] = (),
    total: int,
    dataset: int,
    segment_steps: int | None = None,
    segment_seconds: float | None = None,
    layout: Layout | None = None,
    stages: tuple[PlacedStage, ...] = (),
    **more: Any,
) -> LaunchOrder:
    """With `stages` each slot is of its stage's type."""
    allocation = Allocation(
        comm=spec.comm.algorithm,
        slots=slots_of(stages) if stages else tuple(_slot(i) for i in range(slots)),
        global_batch=batch,
        layout=layout or Layout(data=slots),
        stages=stages,
    )
    values: dict[str, Any] = {
        "segment_id": f"job__seg_{epoch}", "job_id": "job", "index": 0, "lineage": 0, "epoch": epoch,
        "origin_epoch": epoch, "attempt": 0, "spec": spec, "facts": JobFacts(dataset_samples=dataset),
        "allocation": allocation, "total_samples": total, "restore": RestorePoint(candidates=records),
        "warm_start": None, "segment_seconds": segment_seconds, "segment_steps": segment_steps,
        "token": f"epoch-{epoch}", "lease_seconds": 60.0, "heartbeat_seconds": 0.05,
    }  # fmt: skip
    return LaunchOrder(**{**values, **more})


def slots_of(stages: Sequence[PlacedStage]) -> tuple[Slot, ...]:
    kinds = [stage.type for stage in stages for _ in range(stage.num_slots)]
    return tuple(Slot("n", index, kind) for index, kind in enumerate(kinds))


def _slot(index: int) -> Slot:
    return Slot("n", index, "cpu")


def _resized(
    order: LaunchOrder, slots: list[int], layout: Layout | None, stages: Stages, commits: list[Any]
) -> LaunchOrder:
    """The next segment's order on these slots, as a ledger would give it to new processes. Those it has keep their
    types, others have their stage's."""
    following, old = _next_order(order, order.allocation.global_batch, commits), order.allocation.layout
    known = {slot.index: slot for slot in order.allocation.slots}
    kinds = [slot.type for slot in slots_of(stages)] or ["cpu"] * len(slots)
    allocation = replace(
        following.allocation,
        slots=tuple(known.get(index, Slot("n", index, kind)) for index, kind in zip(slots, kinds, strict=True)),
        layout=layout or old.over(len(slots) // old.model_size),
        stages=stages,
    )
    return replace(following, allocation=allocation)


def _next_order(order: LaunchOrder, batch: int, commits: list[Any]) -> LaunchOrder:
    records = tuple(_record(i, from_json(Commit, commit)) for i, commit in reversed(list(enumerate(commits))))
    return replace(
        order,
        segment_id=f"job__seg_{order.epoch + 1}",
        index=order.index + 1,
        epoch=order.epoch + 1,
        allocation=replace(order.allocation, global_batch=batch),
        restore=RestorePoint(candidates=records),
        token=f"epoch-{order.epoch + 1}",
    )


def _record(index: int, commit: Commit) -> CheckpointRecord:
    return CheckpointRecord(
        checkpoint_id=index, job_id="job", lineage=0, step=commit.step, samples=commit.samples, epoch=1, segment_id="s",
        uri=commit.uri, manifest_sha256=commit.manifest_sha256, size_bytes=commit.size_bytes, layout=commit.layout,
        metrics=commit.metrics, committed_at=0.0, final=commit.final,
    )  # fmt: skip
