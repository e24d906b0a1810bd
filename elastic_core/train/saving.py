"""Writing a checkpoint: every rank its part, in parallel; rank 0 the manifest and the commit.

Ranks agree after writing: one that could not write makes the save fail on all. A directory that never gets its
manifest, or whose manifest is never committed, is litter that the sweeper finds.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from elastic_core.control.contract import Commit, CommitAnswer, LaunchOrder
from elastic_core.domain import from_json, to_json
from elastic_core.errors import BY_CODE, ElasticError, InfrastructureError
from elastic_core.state.contract import CheckpointStore
from elastic_core.state.format import CheckpointHeader, ShardInfo, plan_writers, write_manifest, write_shard
from elastic_core.state.manifest import checkpoint_uri
from elastic_core.train.audit import ReadLog, Reads, dump_indices, to_fingerprints
from elastic_core.train.committing import Committer
from elastic_core.train.exits import Stopped
from elastic_core.train.group import Group


class SaveFailed(InfrastructureError):
    """The checkpoint could not be written; nothing was committed."""

    code = "save_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One rank's view of what to save. `scalars`, `metrics` and `timings` matter on rank 0 only."""

    step: int
    samples: int
    shared: Mapping[str, Tensor]  # every rank holds them alike
    own: Mapping[str, Tensor]  # this rank's
    scalars: Mapping[str, Any]
    metrics: Mapping[str, float]
    timings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Part:
    """What a rank tells the others of its writing."""

    shard: ShardInfo | None
    reads: Reads
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What rank 0 tells the others of a commit; the order in it carries no token."""

    answer: CommitAnswer | None
    code: str = ""
    error: str = ""


class Saver:
    """Saves and commits for one process group. `committer` is rank 0's."""

    def __init__(self, group: Group, store: CheckpointStore, reads: ReadLog, committer: Committer | None) -> None:
        self._group = group
        self._store = store
        self._reads = reads
        self._committer = committer
        # One nonce a process group and a number a save: unique without asking for it each time.
        self._nonce = group.from_first(uuid.uuid4().hex[:8].encode()).decode()
        self._count = 0

    def interval(self, order: LaunchOrder, content: Content) -> None:
        """Save; the commit goes on in the background. Raises `SaveFailed` on every rank alike."""
        commit = self._write(order, content, final=False, finished=False)
        if self._committer is not None:
            self._committer.start(commit)

    def final(
        self, order: LaunchOrder, content: Content, finished: bool, leaving: bool = False
    ) -> tuple[CommitAnswer, float]:
        """Save and commit; the answer, and when the commit was sent (monotonic). Tokens are rank 0's only.

        `leaving`: these processes end now, so the lease must not pass on to them.

        Raises `SaveFailed`, or what the commit raised (`Stopped`, `Fenced`, ...), on every rank alike.
        """
        commit = replace(self._write(order, content, final=True, finished=finished), leaving=leaving)
        outcome, full, sent = _Outcome(None), None, time.monotonic()
        if self._committer is not None:
            try:
                full, sent = self._committer.finish(commit)
            except ElasticError as error:
                outcome = _Outcome(None, error.code, str(error))
            else:
                outcome = _Outcome(_without_token(full))
        told = from_json(_Outcome, json.loads(self._group.from_first(json.dumps(to_json(outcome)).encode())))
        if told.answer is None:
            raise {**BY_CODE, Stopped.code: Stopped}.get(told.code, InfrastructureError)(told.error)
        return full or told.answer, sent

    def _write(self, order: LaunchOrder, content: Content, *, final: bool, finished: bool) -> Commit:
        started = time.perf_counter()
        header = CheckpointHeader(
            job_id=order.job_id, step=content.step, samples=content.samples, lineage=order.lineage,
            segment_id=order.segment_id, epoch=order.epoch, layout=order.allocation.layout, written_at=time.time(),
        )  # fmt: skip
        self._count += 1
        uri = checkpoint_uri(header, f"{self._nonce}{self._count:04d}")
        reads, indices = self._reads.take()
        try:
            part = _Part(self._write_shard(uri, content), self._keep_indices(uri, reads, indices))
        except ElasticError as error:
            part = _Part(None, Reads(), f"rank {self._group.rank}: {error}")
        parts = self._exchange(part)
        failures = [part.error for part in parts if part.error]
        written = None
        if not failures and self._group.rank == 0:
            try:
                shards = [part.shard for part in parts if part.shard is not None]
                written = write_manifest(self._store, uri, shards, header, content.scalars)
            except ElasticError as error:
                failures = [f"the manifest: {error}"]
        failures = json.loads(self._group.from_first(json.dumps(failures).encode()))
        if failures:
            self._reads.put_back(reads, indices)
            raise SaveFailed(f"The checkpoint of step {content.step} could not be written: {'; '.join(failures)}")
        everything = Reads()
        for part in parts:
            everything = everything.merged(part.reads)
        return Commit(
            step=content.step,
            samples=content.samples,
            uri=uri,
            manifest_sha256=written.sha256 if written else "",
            size_bytes=written.size_bytes if written else 0,
            layout=order.allocation.layout,
            metrics=content.metrics,
            final=final,
            finished=finished,
            fingerprints=to_fingerprints(everything),
            timings={**content.timings, "save": time.perf_counter() - started},
        )

    def _write_shard(self, uri: str, content: Content) -> ShardInfo:
        sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in content.shared.items()}
        mine = plan_writers(sizes, self._group.world)[self._group.rank]
        tensors = {**{name: content.shared[name] for name in mine}, **content.own}
        return write_shard(self._store, uri, self._group.rank, tensors)

    def _keep_indices(self, uri: str, reads: Reads, indices: Mapping[int, Any]) -> Reads:
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
