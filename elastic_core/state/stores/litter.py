"""Removing checkpoints: those the ledger has given up, and the litter of writers that died.

A directory is litter only if it can never be committed any more. Nothing else is ever touched: no directory that is not
named like a checkpoint's, no other job's, no checkpoint in `live`. Which those are is the ledger's to say. Jobs' own
code writes in their folders: one that cannot be looked at or deleted, or takes long, keeps nobody else's from being
swept.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.protocol.process_groups import StoredCheckpoint
from elastic_core.state.stores.paths import MANIFEST, CheckpointPath
from elastic_core.state.stores.store import CheckpointStore, Entry, ListsLevels

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST_TOLD = 5  # of what could not be deleted
LEVELS = 3  # below a job's folder: lineages, their checkpoints, and what one of these is made of
MOST_ENTRIES = 200_000  # files and folders of one job that are looked at: seconds; thousands of checkpoints have them
TURN_SECONDS = 20.0  # for deleting, and as long for looking: whoever reconciles has more to do, each minute


@dataclass(frozen=True, slots=True)
class Swept:
    """What is gone from the store: checkpoints (for `ServiceControl.swept`) and litter directories."""

    checkpoint_ids: tuple[int, ...]
    litter: tuple[str, ...]


class NotSwept(InfrastructureError):
    """Some of it could not be deleted, and may be the next time; `swept` is gone."""

    def __init__(self, swept: Swept, faults: Sequence[str]) -> None:
        super().__init__(f"{len(faults)} could not be swept, all else was: {'; '.join(faults[:MOST_TOLD])}")
        self.swept = swept


def sweep(
    store: CheckpointStore,
    removable: Sequence[StoredCheckpoint],
    live: Collection[str],
    now: float,
    grace: float,
    *,
    jobs: Collection[str] = (),
    live_epochs: Collection[int] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Swept:
    """Delete `removable`, then the litter of their jobs and of `jobs`. Crashed half-way, it is simply run again.

    live: uris that stay whatever else is said: every checkpoint the ledger keeps. now: Unix time by the store's
    clock. grace: seconds since a directory's last write. live_epochs: the lease epochs of those jobs that may
    still commit, where the caller knows them. Without them a directory is litter only when it is incomplete and
    of an epoch before the newest of its job, and one that has a manifest always stays.

    Once a turn is over, what is left is left to the next sweep (`clock`: seconds). What is deleted, and whose litter
    is looked for, comes in another order each time, so that nothing is always behind what takes long.

    Raises `NotSwept` once all else is done, and `InfrastructureError` at once where the store itself is away.
    """
    live_uris, singly = set(live), _Singly(store)
    given_up = [record for record in removable if record.uri not in live_uris and CheckpointPath.parse(record.uri)]
    removed = [record for record in _of_a_turn(given_up, clock) if singly.deleted(record.uri)]
    tried = live_uris | {record.uri for record in given_up}
    looked_at = [*{record.job_id for record in removable}.union(jobs)]
    litter = [
        uri
        for job in _of_a_turn(looked_at, clock)
        for uri in singly.litter(job, tried, now - grace, live_epochs)
        if singly.deleted(uri)
    ]
    swept = Swept(tuple(record.checkpoint_id for record in removed), tuple(litter))
    if singly.faults:
        raise NotSwept(swept, singly.faults)
    return swept


def _of_a_turn(all_of_them: Sequence[T], clock: Callable[[], float]) -> Iterator[T]:
    """One after the other, in any order, until the turn is over; the first in any case."""
    until = clock() + TURN_SECONDS
    for number, one in enumerate(random.sample(all_of_them, len(all_of_them))):
        if number and clock() > until:
            log.warning("%d of %d are left to the next sweep", len(all_of_them) - number, len(all_of_them))
            return
        yield one


class _Singly:
    """Each directory by itself, so that one of which nothing can be made keeps no other. `faults` may pass."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self.faults: list[str] = []

    def deleted(self, uri: str) -> bool:
        with self._passing_over(uri):
            _delete(self._store, uri)
            return True
        return False

    def litter(
        self, job: str, others: Collection[str], before: float, live_epochs: Collection[int] | None
    ) -> list[str]:
        with self._passing_over(f"the litter of {job}"):
            return _litter(self._store, job, others, before, live_epochs)
        return []

    @contextmanager
    def _passing_over(self, what: str) -> Iterator[None]:
        try:
            yield
        except UserError as error:  # no store takes such a name, now or later
            log.error("%s is passed over: %s", what, error)
        except InfrastructureError as error:
            self._store.size(MANIFEST)  # raises where it is the store that is away
            log.error("%s is passed over, until the next time: %s", what, error)
            self.faults.append(f"{what}: {error}")


@dataclass(slots=True)
class _Directory:
    path: CheckpointPath
    last_write: float = 0.0
    complete: bool = False


def _litter(
    store: CheckpointStore, job: str, others: Collection[str], before: float, live_epochs: Collection[int] | None
) -> list[str]:
    """Directories of a job besides `others`, last written before an instant, that can never be committed any more."""
    directories: dict[str, _Directory] = {}
    for entry in _written(store, job, None if live_epochs is None else MOST_ENTRIES):
        uri, _, name = entry.key.rpartition("/")
        path = CheckpointPath.parse(uri)
        if path is None or path.job_id != job:
            continue
        directory = directories.setdefault(uri, _Directory(path))
        directory.last_write = max(directory.last_write, entry.modified)
        directory.complete |= name == MANIFEST
    newest = max((directory.path.epoch for directory in directories.values()), default=0)
    return [
        uri
        for uri, directory in sorted(directories.items())
        if uri not in others and directory.last_write < before and _can_never_commit(directory, newest, live_epochs)
    ]


def _written(store: CheckpointStore, job: str, most: int | None) -> Iterable[Entry]:
    """What a job has in the store, as far down as its checkpoints are. A directory that is seen in part is judged by
    its epoch alone; `most` is None where its manifest has a say, too."""
    if isinstance(store, ListsLevels):
        return store.first_levels(job, LEVELS, most)
    return chain(store.entries(job), store.unfinished(job))


def _can_never_commit(directory: _Directory, newest: int, live_epochs: Collection[int] | None) -> bool:
    if live_epochs is None:
        return not directory.complete and directory.path.epoch < newest
    return directory.path.epoch not in live_epochs


def _delete(store: CheckpointStore, uri: str) -> None:
    """The manifest first: whatever happens meanwhile, what is left is no checkpoint."""
    store.delete(f"{uri}/{MANIFEST}")
    store.delete(uri)
