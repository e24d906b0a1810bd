"""Simulated trainers: what the ranks of a group do towards control plane and store, without a model.

Real are the messages, the data order, the log of what was read and its fingerprints. A heartbeat renews the lease, and
the group ends by itself before a lease that was not renewed does, by its own clock, which never jumps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from random import Random

from benchmarks.simulated_faults.host import Group, SimulatedLauncher
from benchmarks.simulated_faults.hub import Hub
from elastic_core.domain import Layout, Slot
from elastic_core.errors import Conflict, CorruptCheckpoint, ElasticError, Fenced, InfrastructureError, Unauthorized
from elastic_core.protocol.encoding import dumps, loads
from elastic_core.protocol.http_client import HttpTrainer
from elastic_core.protocol.process_groups import ExitKind, LaunchOrder
from elastic_core.protocol.records import CheckpointRecord
from elastic_core.protocol.trainer import Commit, CommitAnswer, Directive, Heartbeat
from elastic_core.state.order.sample_order import batch_indices
from elastic_core.state.stores.paths import MANIFEST, CheckpointPath
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.train.data.audit import ReadLog, to_fingerprints
from tests.builders import an_observation

BEAT_SECONDS = 12.0
LEASE_MARGIN = 0.05  # of a lease's life, before its end: the group ends itself, as the real one does
COMMIT_STEPS, OBSERVE_STEPS = 5, 4


class StoppedError(ElasticError):
    """The world outside wants the group to end without a commit."""


class Trainer:
    def __init__(
        self, hub: Hub, launcher: SimulatedLauncher, group: Group, store: CheckpointStore,
        connect: Callable[[str], HttpTrainer], clock: Callable[[], float], rng: Random,
    ) -> None:  # fmt: skip
        self._hub, self._launcher, self._group, self._store = hub, launcher, group, store
        self._connect, self._clock, self._rng = connect, clock, rng
        self._order = group.order
        self._client = connect(group.order.token)
        self._lease_until = hub.now + group.order.lease_seconds
        self._boundary = False
        self._next_slots: tuple[Slot, ...] = ()
        self._step = self._samples = 0
        self._log = ReadLog(keep_indices=False)

    def run(self) -> None:
        group = self._group
        try:
            group.ended = self._live()
        except (StoppedError, Fenced, Unauthorized) as stopped:
            group.ended, group.error = ExitKind.STOPPED, str(stopped)
        except ElasticError as fault:
            group.ended, group.error = ExitKind.INFRASTRUCTURE, f"{type(fault).__name__}: {fault}"
        self._launcher.gone(group)

    def _live(self) -> ExitKind:
        self._hub.sleep(self._rng.uniform(0.5, 3.0))
        self._beat()
        self._hub.spawn(self._group.workers, self._keep_beating)
        self._hub.spawn(self._group.workers, self._keep_watch)
        self._restore()
        while True:
            finished = self._train()
            self._boundary = True  # whatever is asked for from now on, this segment's end is under way
            order = self._end_segment(finished)
            if order is None:
                return ExitKind.FINISHED if finished else ExitKind.BOUNDARY
            self._go_on(order)

    def _train(self) -> bool:
        """Until the segment's end; whether it is the job's end as well."""
        order, started = self._order, self._step
        while self._samples < order.total_samples:
            if self._group.told_to_stop:
                raise StoppedError("SIGTERM")
            if self._step > started and (self._boundary or self._step - started >= (order.segment_steps or 10**9)):
                return False
            self._train_step()
            if self._step % OBSERVE_STEPS == 0:
                self._client.observe([an_observation(self._step, order, samples=self._samples, at=self._clock())])
            if self._step % COMMIT_STEPS == 0 and self._samples < order.total_samples:
                self._commit(final=False, finished=False)
        return True

    def _train_step(self) -> None:
        order = self._order
        self._hub.sleep(1.0 + order.allocation.global_batch / (16.0 * order.allocation.num_slots))
        count = min(order.allocation.global_batch, order.total_samples - self._samples)
        at, size = self._samples, order.facts.dataset_samples
        while at < self._samples + count:
            length = min(size - at % size, self._samples + count - at)
            self._log.record(at // size, batch_indices(order.spec.seed, size, at, length))
            at += length
        self._step, self._samples = self._step + 1, at

    # the lease

    def _beat(self) -> None:
        sent = self._hub.now
        answer = self._client.heartbeat(Heartbeat(step=self._step, samples=self._samples, at=self._clock()))
        if answer.directive in (Directive.STOP, Directive.FENCED):
            raise StoppedError(answer.reason)
        self._lease_until = max(self._lease_until, sent + answer.lease_seconds)
        if answer.token is not None:
            self._client.token = answer.token
        if answer.directive is Directive.BOUNDARY:
            self._boundary, self._next_slots = True, answer.slots

    def _keep_beating(self) -> None:
        while True:
            self._hub.sleep(BEAT_SECONDS)
            try:
                self._beat()
            except (StoppedError, Fenced, Unauthorized) as stopped:
                self._end(str(stopped))
                return
            except InfrastructureError:
                continue

    def _keep_watch(self) -> None:
        while (left := self._lease_until - LEASE_MARGIN * self._order.lease_seconds - self._hub.now) > 0:
            self._hub.sleep(left)
        self._end("the lease could not be renewed")

    def _end(self, why: str) -> None:
        self._group.error = self._group.error or why
        self._group.ended = self._group.ended or ExitKind.STOPPED
        self._launcher.gone(self._group)
        self._hub.ended(self._group.workers)

    # checkpoints

    def _restore(self) -> None:
        """As `elastic_core.train.checkpoint.restore` does."""
        passed: list[tuple[int, str]] = []
        for record in self._order.restore.candidates:
            try:
                self._step, self._samples = self._read(record)
            except CorruptCheckpoint as corrupt:
                passed.append((record.checkpoint_id, str(corrupt)))
                continue
            for checkpoint_id, why in passed:
                self._client.mark_bad(checkpoint_id, why)
            return
        if len(passed) == 1:
            self._client.mark_bad(*passed[0])
        if passed:
            raise InfrastructureError(f"none of {len(passed)} checkpoints can be read: {passed}")
        self._step = self._samples = 0

    def _read(self, record: CheckpointRecord) -> tuple[int, int]:
        try:
            manifest = self._store.get(f"{record.uri}/{MANIFEST}")
            content = loads(manifest) if _sha(manifest) == record.manifest_sha256 else None
            if content is None:
                raise CorruptCheckpoint(f"the manifest of {record.uri} is not the committed one")
            for name, digest in content["parts"].items():
                if _sha(self._store.get(f"{record.uri}/{name}")) != digest:
                    raise CorruptCheckpoint(f"{record.uri}/{name} is damaged")
        except FileNotFoundError as missing:
            raise CorruptCheckpoint(f"{missing} is missing") from missing
        return int(content["step"]), int(content["samples"])

    def _write(self) -> tuple[str, str]:
        """A checkpoint of now, part by part, the manifest last: its uri, and the manifest's SHA-256."""
        order = self._order
        nonce = f"{self._rng.getrandbits(48):012x}"
        uri = CheckpointPath(order.job_id, order.lineage, self._step, order.epoch, nonce).uri
        parts = {}
        for rank in range(order.allocation.num_slots):
            content = dumps({"rank": rank, "step": self._step, "nonce": nonce}).encode()
            self._store.put(f"{uri}/part-{rank}", content)
            parts[f"part-{rank}"] = _sha(content)
        manifest = dumps({"step": self._step, "samples": self._samples, "parts": parts}).encode()
        self._store.put(f"{uri}/{MANIFEST}", manifest)
        return uri, _sha(manifest)

    def _commit(self, *, final: bool, finished: bool) -> CommitAnswer:
        step, samples, order = self._step, self._samples, self._order
        reads, _ = self._log.take()
        uri, digest = self._write()
        held = order.allocation.slots
        ready = tuple(slot for slot in self._next_slots if slot not in held)
        commit = Commit(
            step=step, samples=samples, uri=uri, manifest_sha256=digest, size_bytes=1,
            layout=Layout(data=order.allocation.num_slots), metrics={"loss": 1.0 / (step + 1)}, final=final,
            finished=finished, ready=ready, fingerprints=to_fingerprints(reads),
        )  # fmt: skip
        self._group.said.append((self._client.token, commit))
        return self._client.commit(commit)

    def _end_segment(self, finished: bool) -> LaunchOrder | None:
        try:
            return self._commit(final=True, finished=finished).order
        except Conflict as conflict:  # e.g. the job was rolled back meanwhile
            raise StoppedError(str(conflict)) from conflict

    def _go_on(self, order: LaunchOrder) -> None:
        """The same processes under the next segment's lease; who has lost his slot ends a little later."""
        before, after = self._order.allocation.slots, order.allocation.slots
        lost = [slot for slot in before if slot not in after]
        self._order, self._group.order = order, _with_agent_token(order, self._group.order)
        self._client.token = order.token
        self._boundary, self._next_slots = False, ()
        self._group.occupied += [slot for slot in after if slot not in before]
        if lost:
            self._hub.spawn(self._group.workers, lambda: self._leave(lost), self._rng.uniform(0.5, 6.0))

    def _leave(self, slots: list[Slot]) -> None:
        """The agent tells it, under the order in force by then."""
        self._group.occupied = [slot for slot in self._group.occupied if slot not in slots]
        agent = self._connect(self._group.order.agent_token)
        for _ in range(3):
            try:
                agent.release_slots(slots, self._group.order.epoch)
            except Conflict:
                return  # the group is over, and its end frees them
            except (Fenced, InfrastructureError):  # the lease passes on once more, or the API is away
                self._hub.sleep(self._rng.uniform(0.5, 3.0))
                continue
            return


def _with_agent_token(order: LaunchOrder, before: LaunchOrder) -> LaunchOrder:
    return replace(order, agent_token=before.agent_token)


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
