"""Writing a checkpoint: every rank its part, in parallel; rank 0 the manifest and the commit.

Ranks agree after writing: one that could not write makes the save fail on all. A directory that never gets its
manifest, or whose manifest is never committed, is litter that the sweeper finds.

A checkpoint is written behind the steps, in stages that all ranks end together: the parts, then the manifest, and for
one that ends the segment the commit; the last two are one stage where no rank holds only a part of the model. A rank
says in each step's message whether its work of the stage is done (`Saver.ready`), and after the step at which all have
said so, all of them `advance`: so the threads that write never talk to other ranks, and all hear of the outcome at the
same step. There is never more than one under way.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor

from elastic_core.control.contract import Commit, CommitAnswer, LaunchOrder
from elastic_core.domain import from_json, to_json
from elastic_core.errors import BY_CODE, ElasticError, InfrastructureError
from elastic_core.state.contract import CheckpointStore
from elastic_core.state.format import (
    Box,
    CheckpointHeader,
    ShardInfo,
    Written,
    plan_writers,
    write_manifest,
    write_shard,
)
from elastic_core.state.manifest import checkpoint_uri
from elastic_core.train.audit import Indices, ReadLog, Reads, dump_indices, to_fingerprints
from elastic_core.train.behind import Behind, Staging
from elastic_core.train.committing import Committer
from elastic_core.train.exits import Stopped
from elastic_core.train.group import Group
from elastic_core.train.places import Places

if TYPE_CHECKING:
    from elastic_core.train.cut_state import Collection


class SaveFailed(InfrastructureError):
    """The checkpoint could not be written; nothing was committed."""

    code = "save_failed"


Measure = Callable[[str], Mapping[str, float]]
"""Metrics of a complete checkpoint, by its uri."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One rank's view of what to save. `metrics` and `timings` matter on rank 0 only, `scalars` on the first rank of
    each stage."""

    step: int
    samples: int
    shared: Mapping[str, Tensor]  # the model's and the optimizer's: alike on every rank, or its parts of them
    own: Mapping[str, Tensor]  # this rank's
    scalars: Mapping[str, Any]
    metrics: Mapping[str, float]
    timings: Mapping[str, float]
    measure: Measure | None = None  # rank 0's: more metrics, of the checkpoint as it lies in the store


@dataclass(frozen=True, slots=True, kw_only=True)
class _Save:
    """One checkpoint on its way, as this rank sees it."""

    order: LaunchOrder
    content: Content
    header: CheckpointHeader
    uri: str
    reads: Reads
    indices: Mapping[int, Indices]
    started: float  # perf_counter
    collection: Collection | None = None  # None: every rank holds the whole state


@dataclass(frozen=True, slots=True)
class Ending:
    """The checkpoint ends its segment: all of the job if `finished`. `leaving`: these processes end now, so the lease
    must not pass on to them."""

    finished: bool = False
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of a checkpoint that ends a segment. Tokens in it are rank 0's only."""

    answer: CommitAnswer
    sent: float  # when the commit was sent, monotonic


@dataclass(slots=True)
class _Pending:
    """A checkpoint under way: first its `part`, then, once `parts` are known, on rank 0 its manifest, then the commit,
    whose answer is only waited for where the segment ends. `committing`: the last stage, with or without the manifest.
    """

    save: _Save
    ending: Ending | None  # None: an interval checkpoint
    part: Behind[_Part]
    parts: Sequence[_Part] = ()
    manifest: Behind[Written] | None = None
    committing: bool = False
    answer: Behind[Answered] | None = None

    @property
    def mine(self) -> Behind[Any] | None:
        """This rank's work of the stage; None if it has none."""
        if self.committing:
            return self.answer
        return self.manifest if self.parts else self.part


@dataclass(frozen=True, slots=True)
class _Part:
    """What a rank tells the others of its writing."""

    shard: ShardInfo | None
    reads: Reads
    error: str = ""
    scalars: dict[str, Any] | None = None  # of the stages after the first, which rank 0 does not know


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What rank 0 tells the others of a commit; the order in it carries no token."""

    answer: CommitAnswer | None
    code: str = ""
    error: str = ""


class Saver:
    """Saves and commits for one process group. `committer` is rank 0's."""

    def __init__(
        self,
        group: Group,
        store: CheckpointStore,
        reads: ReadLog,
        committer: Committer | None,
        places: Places,
        groups: Sequence[Sequence[str]] = (),
    ) -> None:
        """`groups`: the parameters in each group of the whole model's optimizer, where the model has stages."""
        self._group = group
        self._places, self._groups = places, groups
        self._store = store
        self._reads = reads
        self._committer = committer
        # One nonce a process group and a number a save: unique without asking for it each time.
        self._nonce = group.from_first(uuid.uuid4().hex[:8].encode()).decode()
        self._count = 0
        self._staging = Staging()
        self._pending: _Pending | None = None

    @property
    def pending(self) -> bool:
        """A checkpoint is under way; the same on every rank."""
        return self._pending is not None

    @property
    def ready(self) -> bool:
        """This rank has done its part of the stage that the pending checkpoint is in."""
        if self._pending is None:
            return False
        work = self._pending.mine
        return work is None or work.done

    def behind(self, order: LaunchOrder, content: Content, ending: Ending | None = None) -> None:
        """Begin a checkpoint and return as soon as its content is copied aside. None may be pending."""
        save = self._begin(order, content)
        self._start(save, ending, self._staging.copy(self._mine(save)))

    def final(self, order: LaunchOrder, content: Content, ending: Ending) -> Answered:
        """Save and commit, and wait for the answer: for when there is nothing to go on with meanwhile.

        Raises `SaveFailed`, or what the commit raised (`Stopped`, `Fenced`, ...), on every rank alike.
        """
        save = self._begin(order, content)
        self._start(save, ending, self._mine(save))
        answered = self.settle()
        assert answered is not None, "the segment ends"
        return answered

    def advance(self) -> Answered | None:
        """Go on with the pending checkpoint, on every rank alike; waits for what is not `ready`.

        Gives the answer once one that ends the segment has it; then it is pending no more. Raises `SaveFailed` on
        every rank alike: then it is given up, and its reads go with the next one. Of one that ends the segment it also
        raises what the commit raised, on every rank alike.
        """
        pending, self._pending = self._pending, None
        assert pending is not None
        save, ending, committer = pending.save, pending.ending, self._committer
        if pending.committing:
            return self._told(save, pending.answer)
        if not pending.parts:
            pending.parts = parts = self._agreed_parts(save, pending.part.result())
            if ending is not None and save.collection is None:  # nothing is left that ranks do between two steps
                pending.committing = True
                if committer is not None:
                    pending.answer = Behind("commit", lambda: self._write_and_commit(save, parts, ending, committer))
            elif self._group.rank == 0:
                pending.manifest = Behind("manifest", lambda: self._write_manifest(save, parts))
            self._pending = pending
            return None
        commit = self._concluded(save, pending.parts, pending.manifest)
        if ending is None:
            if committer is not None:
                committer.start(commit)
            return None
        pending.committing = True
        if committer is not None:
            pending.answer = Behind("commit", lambda: self._commit(commit, ending, committer))
        self._pending = pending
        return None

    def settle(self) -> Answered | None:
        """Wait for the pending checkpoint, if there is one. Gives and raises what `advance` does."""
        answered = None
        while self._pending is not None:
            answered = self.advance()
        return answered

    def _start(self, save: _Save, ending: Ending | None, tensors: Mapping[str, Tensor]) -> None:
        self._pending = _Pending(save, ending, Behind("save", lambda: self._write_part(save, tensors)))

    def _write_and_commit(self, save: _Save, parts: Sequence[_Part], ending: Ending, committer: Committer) -> Answered:
        try:
            written = self._write_manifest(save, parts)
        except ElasticError as error:
            raise SaveFailed(f"the manifest: {error}") from error
        return self._commit(self._commit_of(save, parts, written), ending, committer)

    @staticmethod
    def _commit(commit: Commit, ending: Ending, committer: Committer) -> Answered:
        last = replace(commit, final=True, finished=ending.finished, leaving=ending.leaving)
        return Answered(*committer.finish(last))

    def _told(self, save: _Save, work: Behind[Answered] | None) -> Answered:
        """Rank 0's answer, on every rank."""
        outcome, mine = _Outcome(None), None
        if work is not None:
            try:
                mine = work.result()
            except ElasticError as error:
                outcome = _Outcome(None, error.code, str(error))
            else:
                outcome = _Outcome(_without_token(mine.answer))
        told = from_json(_Outcome, json.loads(self._group.from_first(json.dumps(to_json(outcome)).encode())))
        if told.code == SaveFailed.code:
            self._give_up(save, [told.error])
        if told.answer is None:
            raise {**BY_CODE, Stopped.code: Stopped}.get(told.code, InfrastructureError)(told.error)
        return mine or Answered(told.answer, time.monotonic())

    def _begin(self, order: LaunchOrder, content: Content) -> _Save:
        assert self._pending is None, "one checkpoint at a time"
        header = CheckpointHeader(
            job_id=order.job_id, step=content.step, samples=content.samples, lineage=order.lineage,
            segment_id=order.segment_id, epoch=order.epoch, layout=order.allocation.layout, written_at=time.time(),
        )  # fmt: skip
        self._count += 1
        uri = checkpoint_uri(header, f"{self._nonce}{self._count:04d}")
        reads, indices = self._reads.take()
        collection = None
        if not self._places.replicated:
            from elastic_core.train.cut_state import collect

            collection = collect(content.shared, self._group, self._places, order.allocation.slots)
        return _Save(
            order=order, content=content, header=header, uri=uri, reads=reads, indices=indices,
            started=time.perf_counter(), collection=collection,
        )  # fmt: skip

    def _mine(self, save: _Save) -> dict[str, Tensor]:
        """What this rank writes: its share of what all hold alike, or of its parts, and what only it holds."""
        content = save.content
        if save.collection is not None:
            return {**{name: save.collection.parts[name] for name in save.collection.boxes}, **content.own}
        sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in content.shared.items()}
        mine = plan_writers(sizes, self._group.world)[self._group.rank]
        return {**{name: content.shared[name] for name in mine}, **content.own}

    def _write_part(self, save: _Save, tensors: Mapping[str, Tensor]) -> _Part:
        boxes: Mapping[str, Box] = save.collection.boxes if save.collection is not None else {}
        shapes = {name: save.collection.metas[name].shape for name in boxes} if save.collection is not None else {}
        try:
            shard = write_shard(self._store, save.uri, self._group.rank, tensors, boxes, shapes)
            indices = self._keep_indices(save.uri, save.reads, save.indices)
            return _Part(shard, indices, scalars=self._stage_scalars(save.content))
        except ElasticError as error:
            return _Part(None, Reads(), f"rank {self._group.rank}: {error}")

    def _agreed_parts(self, save: _Save, part: _Part) -> Sequence[_Part]:
        parts = self._exchange(part)
        failures = [part.error for part in parts if part.error]
        if failures:
            self._give_up(save, failures)
        return parts

    def _write_manifest(self, save: _Save, parts: Sequence[_Part]) -> Written:
        shards = [part.shard for part in parts if part.shard is not None]
        scalars = self._whole_scalars(save.content, [part.scalars for part in parts if part.scalars is not None])
        layout = save.collection.layout if save.collection is not None else None
        return write_manifest(self._store, save.uri, shards, save.header, scalars, layout)

    def _concluded(self, save: _Save, parts: Sequence[_Part], manifest: Behind[Written] | None) -> Commit:
        """What to commit, once rank 0 has written the manifest; the others' copy of it lacks the hash."""
        written, failures = None, []
        if manifest is not None:
            try:
                written = manifest.result()
            except ElasticError as error:
                failures = [f"the manifest: {error}"]
        failures = json.loads(self._group.from_first(json.dumps(failures).encode()))
        if failures:
            self._give_up(save, failures)
        return self._commit_of(save, parts, written)

    @staticmethod
    def _commit_of(save: _Save, parts: Sequence[_Part], written: Written | None) -> Commit:
        content = save.content
        measured = content.measure(save.uri) if content.measure is not None else {}
        everything = Reads()
        for part in parts:
            everything = everything.merged(part.reads)
        return Commit(
            step=content.step,
            samples=content.samples,
            uri=save.uri,
            manifest_sha256=written.sha256 if written else "",
            size_bytes=written.size_bytes if written else 0,
            layout=save.order.allocation.layout,
            metrics={**content.metrics, **measured},
            final=False,
            finished=False,
            fingerprints=to_fingerprints(everything),
            timings={**content.timings, "save": time.perf_counter() - save.started},
        )

    def _give_up(self, save: _Save, failures: Sequence[str]) -> NoReturn:
        self._reads.put_back(save.reads, save.indices)
        if self._group.rank == 0:
            # What others have written would fill a disk that is full already. What cannot be deleted is swept later.
            Behind("discard", lambda: self._store.delete(save.uri))
        raise SaveFailed(f"The checkpoint of step {save.content.step} could not be written: {'; '.join(failures)}")

    def _whole_scalars(self, content: Content, others: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        if not others:
            return content.scalars
        from elastic_core.train.cut_state import merged_scalars

        return merged_scalars([content.scalars, *others], self._groups)

    def _stage_scalars(self, content: Content) -> dict[str, Any] | None:
        places = self._places
        return dict(content.scalars) if places.stage > 0 and places.data == 0 and places.tensor == 0 else None

    def _keep_indices(self, uri: str, reads: Reads, indices: Mapping[int, Indices]) -> Reads:
        """Write what was read index by index (audit: full), beside the checkpoints, and name it in the fingerprint."""
        job, lineage, name = uri.rsplit("/", 2)
        kept = {}
        for epoch, values in indices.items():
            kept[epoch] = f"{job}/audit/{lineage}/{name}-rank{self._group.rank}-pass{epoch}.npy"
            self._store.put(kept[epoch], dump_indices(values))
        return Reads(
            tuple(
                replace(one, objects=(kept[one.epoch],)) if one.epoch in kept else one  # none were kept: fingerprint
                for one in reads.epochs
            )
        )

    def _exchange(self, part: _Part) -> list[_Part]:
        if self._group.world == 1:
            return [part]
        return [
            from_json(_Part, json.loads(data)) for data in self._group.gather_bytes(json.dumps(to_json(part)).encode())
        ]


def _without_token(answer: CommitAnswer) -> CommitAnswer:
    return answer if answer.order is None else replace(answer, order=replace(answer.order, token=""))
