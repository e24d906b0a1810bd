"""Proof that every sample of an epoch was read exactly once, from what the workers really asked the data set for.

Every commit carries a fingerprint of the indices read since the commit before: per epoch their count and the sum
(mod 2^64) of a 64-bit mix of each. The committed history is complete when the counts and sums add up to those of
0..n-1; a lost or doubled sample changes the count, a swapped one the sum (by chance equal once in 2^64). Who knows
the data order proves more: that what was read is an exact prefix of it, each finished epoch once and the last as far as
it goes. With `audit: full` the indices themselves are kept as .npy objects and are compared one by one.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import from_json, to_json
from elastic_core.state.stores.store import CheckpointStore

if TYPE_CHECKING:  # it brings torch
    from elastic_core.train.data.batches import DataPlan

Indices = NDArray[np.int64]
_WORD = 1 << 64
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class EpochReads:
    """Indices read in one pass over the data set. `mix_sum` is hexadecimal: JSON numbers may lose bits."""

    epoch: int
    count: int
    mix_sum: str
    objects: tuple[str, ...] = ()  # keys in the store of the indices themselves (audit: full)


@dataclass(frozen=True, slots=True)
class Reads:
    """What `Commit.fingerprints` holds, as JSON."""

    epochs: tuple[EpochReads, ...] = ()

    def merged(self, other: Reads) -> Reads:
        by_epoch = {reads.epoch: reads for reads in self.epochs}
        for reads in other.epochs:
            known = by_epoch.get(reads.epoch)
            by_epoch[reads.epoch] = reads if known is None else _add(known, reads)
        return Reads(tuple(by_epoch[epoch] for epoch in sorted(by_epoch)))


@dataclass(frozen=True, slots=True)
class AuditResult:
    """`proven` is None for an epoch that is read in part (its count says how far), where the order is not known."""

    epoch: int
    count: int
    expected: int
    proven: bool | None
    every_index: bool  # every single index was compared, not only the fingerprint
    problem: str = ""
    before: int = 0  # samples of the epoch that the job it was forked from had read; neither in count nor in expected


class ReadLog:
    """Collects the indices that one rank reads; `take` empties it (at a commit)."""

    def __init__(self, keep_indices: bool) -> None:
        self._keep = keep_indices
        self._reads = Reads()
        self._indices: dict[int, list[Indices]] = {}

    def record(self, epoch: int, indices: Indices) -> None:
        self._reads = self._reads.merged(Reads((fingerprint(epoch, indices),)))
        if self._keep:
            self._indices.setdefault(epoch, []).append(np.array(indices, dtype=np.int64))

    def take(self) -> tuple[Reads, dict[int, Indices]]:
        """The fingerprint since the last call, and per epoch the indices in reading order (empty if not kept)."""
        taken = self._reads, {epoch: np.concatenate(parts) for epoch, parts in self._indices.items()}
        self._reads, self._indices = Reads(), {}
        return taken

    def put_back(self, reads: Reads, indices: Mapping[int, Indices]) -> None:
        """What was taken did not get committed: the next commit carries it."""
        self._reads = self._reads.merged(reads)
        for epoch, values in indices.items():
            self._indices.setdefault(epoch, []).insert(0, values)


def mix(indices: Indices) -> NDArray[np.uint64]:
    """SplitMix64's finaliser of each index (Steele et al. 2014); shape as given."""
    x = np.asarray(indices).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fingerprint(epoch: int, indices: Indices) -> EpochReads:
    return EpochReads(epoch, int(indices.size), _hex(int(mix(indices).sum(dtype=np.uint64))))


def complete_fingerprint(epoch: int, dataset_samples: int) -> EpochReads:
    """The fingerprint of an epoch in which every sample was read exactly once."""
    total = 0
    for start in range(0, dataset_samples, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, dataset_samples), dtype=np.int64)
        total += int(mix(block).sum(dtype=np.uint64))
    return EpochReads(epoch, dataset_samples, _hex(total % _WORD))


def to_fingerprints(reads: Reads) -> Mapping[str, Any]:
    plain: Mapping[str, Any] = to_json(reads)
    return plain


def prove(
    reads: Iterable[Mapping[str, Any]],
    dataset_samples: int,
    store: CheckpointStore | None = None,
    plan: DataPlan | None = None,
    begins_at: int = 0,
) -> list[AuditResult]:
    """One result an epoch, from the `fingerprints` of every commit of a lineage (`ServiceControl.reads`).

    With a store, epochs whose indices were kept are compared index by index. With the plan of the data order
    (`DataState.plan` of any checkpoint) all of it must be an exact prefix of that order. `begins_at`: a fork's cursor;
    of its first epoch the rest is proven, with the plan, which says what had been read. Raises
    `pydantic.ValidationError` for fingerprints that are none, `FileNotFoundError` for kept indices that are gone.
    """
    total = Reads()
    for fingerprints in reads:
        total = total.merged(from_json(Reads, dict(fingerprints)))
    start = _Start.of(begins_at, dataset_samples, plan)
    expected_sum = complete_fingerprint(0, dataset_samples).mix_sum
    results = [_audit_epoch(epoch, dataset_samples, expected_sum, store, start) for epoch in total.epochs]
    if plan is None or not total.epochs:
        return results
    by_epoch = {epoch.epoch: (epoch, result) for epoch, result in zip(total.epochs, results, strict=True)}
    last = total.epochs[-1].epoch
    return [
        _as_prefix(*by_epoch[epoch], plan, start, is_last=epoch == last)
        if epoch in by_epoch
        else _unread(epoch, dataset_samples, start.before(epoch), last)
        for epoch in sorted({*by_epoch, *range(start.epoch, last + 1)})
    ]


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a fork goes on: `count` samples of this epoch were read before; `had` are they, where the order is known.
    Epoch 0 and none of it for any other job."""

    epoch: int
    count: int
    had: Indices | None

    @staticmethod
    def of(cursor: int, dataset_samples: int, plan: DataPlan | None) -> _Start:
        epoch, count = divmod(cursor, dataset_samples)
        known = plan is not None and count
        return _Start(epoch, count, plan.batch(epoch * dataset_samples, count, 0, count) if plan and known else None)

    def before(self, epoch: int) -> int:
        return self.count if epoch == self.epoch else 0

    def had_of(self, epoch: int) -> Indices | None:
        return self.had if epoch == self.epoch else None

    def whole(self, reads: EpochReads) -> EpochReads:
        """With what was read before, where that is known."""
        had = self.had_of(reads.epoch)
        return reads if had is None else _add(fingerprint(reads.epoch, had), reads)


def _unread(epoch: int, dataset_samples: int, before: int, last: int) -> AuditResult:
    problem = f"nothing of it was read, and of epoch {last} was"
    return AuditResult(epoch, 0, dataset_samples - before, False, False, problem, before)


def dump_indices(indices: Indices) -> bytes:
    """A .npy file of little-endian int64."""
    buffer = io.BytesIO()
    np.save(buffer, indices.astype("<i8"), allow_pickle=False)
    return buffer.getvalue()


def load_indices(data: bytes) -> Indices:
    loaded: Indices = np.load(io.BytesIO(data), allow_pickle=False)
    return loaded


def _audit_epoch(
    reads: EpochReads, dataset_samples: int, expected_sum: str, store: CheckpointStore | None, start: _Start
) -> AuditResult:
    before, had = start.before(reads.epoch), start.had_of(reads.epoch)
    every_index = store is not None and bool(reads.objects)
    count, knows_all = before + reads.count, not before or had is not None
    problem = ""
    if store is not None and every_index:
        kept = [load_indices(store.get(key)) for key in reads.objects]
        problem = _compare(kept, reads.count, dataset_samples, had)
    if not problem and reads.epoch < start.epoch:
        problem = f"it was read before the checkpoint that the job was forked from, and {reads.count} samples again"
    if not problem and count > dataset_samples:
        problem = f"{count} samples were read in an epoch of {dataset_samples}"
    complete = count == dataset_samples and knows_all
    if not problem and complete and start.whole(reads).mix_sum != expected_sum:
        problem = "the count is right but the samples are not: some were read twice and others never"
    proven = False if problem else (True if complete else None)
    return AuditResult(reads.epoch, reads.count, dataset_samples - before, proven, every_index, problem, before)


def _as_prefix(reads: EpochReads, result: AuditResult, plan: DataPlan, start: _Start, *, is_last: bool) -> AuditResult:
    """The result of an epoch that must be complete, or the last: then it must be the first samples of its order."""
    if result.proven is not None:
        return result
    if not is_last:
        return replace(result, proven=False, problem=f"{reads.count} of {result.expected} were read, and later ones")
    count = result.before + reads.count
    first = plan.batch(reads.epoch * plan.dataset_samples, count, 0, count)
    if fingerprint(reads.epoch, first).mix_sum == start.whole(reads).mix_sum:
        return replace(result, proven=True)
    which = "first of the data order" if not result.before else f"next of the data order after {result.before}"
    return replace(result, proven=False, problem=f"the {reads.count} samples read are not the {which}")


def _compare(parts: Sequence[Indices], count: int, dataset_samples: int, had: Indices | None) -> str:
    """What is wrong with the kept indices of an epoch, '' if nothing is. `had`: what was read of it before."""
    indices = np.concatenate(parts)
    if indices.size != count:
        return f"{indices.size} indices were kept of {count} read"
    indices = indices if had is None else np.concatenate([had, indices])
    if indices.size and (indices.min() < 0 or indices.max() >= dataset_samples):
        return f"an index is outside [0, {dataset_samples})"
    times = np.bincount(indices, minlength=dataset_samples)
    if (doubled := np.flatnonzero(times > 1)).size:
        return f"{doubled.size} samples were read more than once, {doubled[0]} among them"
    if indices.size == dataset_samples and (missing := np.flatnonzero(times == 0)).size:
        return f"{missing.size} samples were never read, {missing[0]} among them"
    return ""


def _add(a: EpochReads, b: EpochReads) -> EpochReads:
    total = (int(a.mix_sum, 16) + int(b.mix_sum, 16)) % _WORD
    return EpochReads(a.epoch, a.count + b.count, _hex(total), a.objects + b.objects)


def _hex(value: int) -> str:
    return f"{value:016x}"
