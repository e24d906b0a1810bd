"""A checkpoint's way from the step just taken to the ledger's commit: the stages of `Stage`, in the order of this file.

Every rank writes its part in parallel; rank 0 writes the manifest and commits. Ranks agree after writing: one that
could not write makes the save fail on all. A directory that never gets its manifest, or whose manifest is never
committed, is litter that the sweeper finds.

In an asynchronous checkpoint steps go on meanwhile, and all ranks end each stage together: a rank says in each step's
message whether its work of the stage is done (`ready`), and after the step at which all have said so, all `advance`.
So the threads that write never talk to other ranks, and all hear of the outcome at the same step. There is never more
than one checkpoint under way.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NoReturn

from torch import Tensor

from elastic_core.domain import from_json, to_json
from elastic_core.errors import BY_CODE, ElasticError, InfrastructureError
from elastic_core.host.exits import Stopped
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.protocol.trainer import Commit, CommitAnswer
from elastic_core.state.format.checkpoint_format import CheckpointHeader, Written, write_manifest
from elastic_core.state.format.manifest import checkpoint_uri
from elastic_core.state.reshard.memories import Memory
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.train.checkpoint.background import BackgroundTask, NoTask, Staging
from elastic_core.train.checkpoint.collection import Collection
from elastic_core.train.checkpoint.committing import Answered, Committer
from elastic_core.train.checkpoint.kept_state import SavedState
from elastic_core.train.checkpoint.rank_part import Content, RankPart, held_parts, tensors_to_write, write_part
from elastic_core.train.data.audit import Indices, ReadLog, Reads, to_fingerprints
from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.places import Places


class SaveFailed(InfrastructureError):
    """The checkpoint could not be written; nothing was committed."""

    code = "save_failed"


class Stage(Enum):
    """Values name the threads."""

    COPYING = "copy"  # tensors are copied aside; where nothing goes on meanwhile, they are written as they are
    WRITING_PARTS = "save"  # every rank its part
    WRITING_MANIFEST = "manifest"  # rank 0
    COMMITTING = "commit"  # rank 0, until the ledger answers
    ANSWERED = "answered"  # or, of an interval checkpoint, on its way: only rank 0 waits, before the next one


@dataclass(frozen=True, slots=True)
class Ending:
    """What ends with a checkpoint: its segment, and all of the job if `finished`. `draining`: these processes end now,
    so the lease must not pass on to them."""

    segment: bool = True
    finished: bool = False
    draining: bool = False


INTERVAL = Ending(segment=False)  # nothing ends


@dataclass(slots=True, kw_only=True)
class _Checkpoint:
    """One checkpoint on its way, as this rank sees it. `task`: this rank's work of the stage."""

    order: LaunchOrder
    content: Content
    ending: Ending
    header: CheckpointHeader
    uri: str
    reads: Reads
    indices: Mapping[int, Indices]
    collection: Collection | None  # None: every rank holds the whole state
    started: float  # perf_counter
    began: float = 0.0  # monotonic, set when all is written: no rank commits before all have set theirs
    held: Memory = field(default_factory=dict)  # what this rank holds of it that does not change while it is pending
    stage: Stage = Stage.COPYING
    task: BackgroundTask[Any] | NoTask
    parts: Sequence[RankPart] = ()  # of all ranks, once they are written
    written: Written | None = None  # on rank 0, once the manifest is
    measured: Mapping[str, float] = field(default_factory=dict)  # on rank 0, of what lies in the store
    answered: Answered | None = None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What rank 0 tells the others of a commit; the order in it carries no token."""

    answer: CommitAnswer | None
    code: str = ""
    error: str = ""


class CheckpointPipeline:
    """Saves and commits for one process group. `committer` is rank 0's."""

    def __init__(
        self,
        group: Group,
        store: CheckpointStore,
        reads: ReadLog,
        committer: Committer | None,
        places: Places,
        optimizer_groups: Sequence[Sequence[str]] = (),
    ) -> None:
        """Collective. `optimizer_groups`: names of the parameters in each, where the model has stages."""
        self._group = group
        self._store = store
        self._reads = reads
        self._committer = committer
        self._places, self._optimizer_groups = places, optimizer_groups
        # One nonce a process group and a number a save: unique without asking for it each time.
        self._nonce = group.from_first(uuid.uuid4().hex[:8].encode()).decode()
        self._count = 0
        self._staging = Staging()
        self.saved: SavedState | None = None  # the last that ended a segment, for those who restart from it in place
        self._under_way: _Checkpoint | None = None

    @property
    def pending(self) -> bool:
        """A checkpoint is under way; the same on every rank."""
        return self._under_way is not None

    @property
    def busy(self) -> bool:
        """As `pending`, and on rank 0 also while an interval checkpoint's commit is without an answer."""
        return self.pending or (self._committer is not None and self._committer.busy)

    @property
    def ready(self) -> bool:
        """This rank has done its work of the stage that the pending checkpoint is in."""
        return self._under_way is not None and self._under_way.task.done

    def save_async(self, order: LaunchOrder, content: Content, ending: Ending = INTERVAL) -> None:
        """Begin a checkpoint and return as soon as its content is copied aside. None may be pending."""
        checkpoint = self._begin(order, content, ending)
        tensors = self._staging.copy(self._tensors_to_write(checkpoint))
        checkpoint.held = held_parts(tensors, checkpoint.collection, self._places.rank)
        self._start_parts(checkpoint, tensors)

    def save(self, order: LaunchOrder, content: Content, ending: Ending) -> Answered:
        """Save, end the segment with it and wait for the answer: for when there is nothing to go on with meanwhile.

        Raises `SaveFailed`, or what the commit raised (`Stopped`, `Fenced`, ...), on every rank alike.
        """
        checkpoint = self._begin(order, content, ending)
        shared = content.shared if checkpoint.collection is None else checkpoint.collection.parts
        checkpoint.held = held_parts({**shared, **content.own}, checkpoint.collection, self._places.rank)
        self._start_parts(checkpoint, self._tensors_to_write(checkpoint))
        while (answered := self.advance()) is None:
            pass
        return answered

    def wait(self) -> Answered | None:
        """Wait for the pending checkpoint, if there is one. Gives and raises what `advance` does."""
        answered = None
        while self.pending:
            answered = self.advance()
        return answered

    def advance(self) -> Answered | None:
        """End the stage of the pending checkpoint and begin the next, on every rank alike; waits for work not `ready`.

        Gives the answer once one that ends the segment has it; then it is pending no more. Raises `SaveFailed` on
        every rank alike: then it is given up, and its reads go with the next one. Of one that ends the segment it also
        raises what the commit raised, on every rank alike.
        """
        checkpoint, self._under_way = self._under_way, None
        if checkpoint is None:
            return None
        if checkpoint.stage is Stage.WRITING_PARTS:
            self._end_parts(checkpoint)
        elif checkpoint.stage is Stage.WRITING_MANIFEST:
            self._end_manifest(checkpoint)
        else:
            self._end_commit(checkpoint)
        if checkpoint.stage is not Stage.ANSWERED:
            self._under_way = checkpoint
        return checkpoint.answered

    # ---- the stages, in their order

    def _begin(self, order: LaunchOrder, content: Content, ending: Ending) -> _Checkpoint:
        assert self._under_way is None, "one checkpoint at a time"
        header = CheckpointHeader(
            job_id=order.job_id, step=content.step, samples=content.samples, lineage=order.lineage,
            segment_id=order.segment_id, epoch=order.epoch, layout=order.allocation.layout, written_at=time.time(),
        )  # fmt: skip
        self._count += 1
        uri = checkpoint_uri(header, f"{self._nonce}{self._count:04d}")
        reads, indices = self._reads.take()
        return _Checkpoint(
            order=order, content=content, ending=ending, header=header, uri=uri, reads=reads, indices=indices,
            collection=content.collection, started=time.perf_counter(), task=NoTask(),
        )  # fmt: skip

    def _start_parts(self, checkpoint: _Checkpoint, tensors: Mapping[str, Tensor]) -> None:
        checkpoint.stage = Stage.WRITING_PARTS
        checkpoint.task = BackgroundTask(
            Stage.WRITING_PARTS.value,
            lambda: write_part(
                self._store, checkpoint.uri, self._places, checkpoint.content, checkpoint.collection, tensors,
                checkpoint.reads, checkpoint.indices,
            ),
        )  # fmt: skip
        self._under_way = checkpoint

    def _end_parts(self, checkpoint: _Checkpoint) -> None:
        checkpoint.parts = self._exchange(checkpoint.task.result())
        failures = [part.error for part in checkpoint.parts if part.error]
        if failures:
            self._give_up(checkpoint, failures)
        if checkpoint.ending.segment and checkpoint.collection is None:
            # Nothing is left that ranks do between two steps: the manifest and the commit are one stage.
            self._begin_commit(checkpoint)
            self._start_on_rank_0(
                Stage.COMMITTING, checkpoint, lambda c: self._write_manifest_and_commit(checkpoint, c)
            )
        else:
            self._start_on_rank_0(Stage.WRITING_MANIFEST, checkpoint, lambda _: self._write_manifest(checkpoint))

    def _end_manifest(self, checkpoint: _Checkpoint) -> None:
        try:
            checkpoint.written = checkpoint.task.result()
        except ElasticError as error:
            failures = [f"the manifest: {error}"]
        else:
            failures = self._measure(checkpoint)
        failures = json.loads(self._group.from_first(json.dumps(failures).encode()))
        if failures:
            self._give_up(checkpoint, failures)
        commit = self._commit_of(checkpoint)  # matters on rank 0
        if checkpoint.ending.segment:
            self._begin_commit(checkpoint)
            self._start_on_rank_0(Stage.COMMITTING, checkpoint, lambda committer: committer.send_final(commit))
            return
        checkpoint.stage = Stage.ANSWERED
        if self._committer is not None:
            self._committer.send_interval(commit)

    def _begin_commit(self, checkpoint: _Checkpoint) -> None:
        """By its own clock each rank knows a moment before the commit, from which the next lease holds for sure. It is
        taken here, since writing may take longer than a lease lives."""
        checkpoint.began = time.monotonic()
        self._group.gather_bytes(b"")  # which ends nowhere before it has begun everywhere

    def _end_commit(self, checkpoint: _Checkpoint) -> None:
        """Every rank learns rank 0's answer, or raises what it raised."""
        own: Answered | None = None
        outcome = _Outcome(None)
        try:
            own = checkpoint.task.result()
        except ElasticError as error:
            outcome = _Outcome(None, error.code, str(error))
        if own is not None:
            outcome = _Outcome(_without_token(own.answer))
        outcome = from_json(_Outcome, json.loads(self._group.from_first(json.dumps(to_json(outcome)).encode())))
        if outcome.code == SaveFailed.code:
            self._give_up(checkpoint, [outcome.error])
        if outcome.answer is None:
            raise {**BY_CODE, Stopped.code: Stopped}.get(outcome.code, InfrastructureError)(outcome.error)
        written = checkpoint.written
        self.saved = SavedState(checkpoint.uri, checkpoint.held, written.manifest if written is not None else b"")
        checkpoint.stage = Stage.ANSWERED
        checkpoint.answered = own or Answered(outcome.answer, checkpoint.began)

    # ---- what the stages do

    def _start_on_rank_0(self, stage: Stage, checkpoint: _Checkpoint, work: Callable[[Committer], object]) -> None:
        committer = self._committer
        checkpoint.stage = stage
        checkpoint.task = NoTask() if committer is None else BackgroundTask(stage.value, lambda: work(committer))

    def _tensors_to_write(self, checkpoint: _Checkpoint) -> dict[str, Tensor]:
        return tensors_to_write(checkpoint.content, checkpoint.collection, self._group)

    def _exchange(self, part: RankPart) -> list[RankPart]:
        if self._group.world == 1:
            return [part]
        packets = self._group.gather_bytes(json.dumps(to_json(part)).encode())
        return [from_json(RankPart, json.loads(packet)) for packet in packets]

    def _write_manifest(self, checkpoint: _Checkpoint) -> Written:
        shards = [part.shard for part in checkpoint.parts if part.shard is not None]
        layout = checkpoint.collection.layout if checkpoint.collection is not None else None
        return write_manifest(
            self._store, checkpoint.uri, shards, checkpoint.header, self._whole_scalars(checkpoint), layout
        )

    def _whole_scalars(self, checkpoint: _Checkpoint) -> Mapping[str, Any]:
        later_stages = [part.scalars for part in checkpoint.parts if part.scalars is not None]
        if not later_stages:
            return checkpoint.content.scalars
        from elastic_core.train.checkpoint.partitioned_state import merged_scalars

        return merged_scalars([checkpoint.content.scalars, *later_stages], self._optimizer_groups)

    def _write_manifest_and_commit(self, checkpoint: _Checkpoint, committer: Committer) -> Answered:
        try:
            checkpoint.written = self._write_manifest(checkpoint)
        except ElasticError as error:
            raise SaveFailed(f"the manifest: {error}") from error
        return committer.send_final(self._commit_of(checkpoint))

    @staticmethod
    def _measure(checkpoint: _Checkpoint) -> list[str]:
        """Evaluate the model as it lies in the store, where no rank has all of it. Gives what the store failed at; what
        the task's code raises goes through."""
        measure = checkpoint.content.measure
        try:
            checkpoint.measured = measure(checkpoint.uri) if measure is not None else {}
        except InfrastructureError as error:
            return [f"it could not be read again to be evaluated: {error}"]
        return []

    @staticmethod
    def _commit_of(checkpoint: _Checkpoint) -> Commit:
        """Of rank 0; the others commit nothing."""
        content, ending, written = checkpoint.content, checkpoint.ending, checkpoint.written
        reads = Reads()
        for part in checkpoint.parts:
            reads = reads.merged(part.reads)
        return Commit(
            step=content.step,
            samples=content.samples,
            uri=checkpoint.uri,
            manifest_sha256=written.sha256 if written else "",
            size_bytes=written.size_bytes if written else 0,
            layout=checkpoint.order.allocation.layout,
            metrics={**content.metrics, **checkpoint.measured},
            final=ending.segment,
            finished=ending.finished,
            draining=ending.draining,
            fingerprints=to_fingerprints(reads),
            timings={**content.timings, "save": time.perf_counter() - checkpoint.started},
            progress=content.progress,
            gain=content.gain,
            notes=content.notes,
        )

    def _give_up(self, checkpoint: _Checkpoint, failures: Sequence[str]) -> NoReturn:
        self._reads.put_back(checkpoint.reads, checkpoint.indices)
        if self._group.rank == 0:
            # What others have written would fill a disk that is full already. What cannot be deleted is swept later.
            BackgroundTask("discard", lambda: self._store.delete(checkpoint.uri))
        step = checkpoint.content.step
        raise SaveFailed(f"The checkpoint of step {step} could not be written: {'; '.join(failures)}")


def _without_token(answer: CommitAnswer) -> CommitAnswer:
    return answer if answer.order is None else replace(answer, order=replace(answer.order, token=""))
