"""Removing checkpoints: those the ledger has given up, and the litter of writers that died.

A directory is litter only if it can never be committed any more. Nothing else is ever touched: no directory that is not
named like a checkpoint's, no other job's, no checkpoint in `live`. Which those are is the ledger's to say.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from elastic_core.protocol.records import CheckpointRecord
from elastic_core.state.stores.paths import MANIFEST, CheckpointPath
from elastic_core.state.stores.store import CheckpointStore


@dataclass(frozen=True, slots=True)
class Swept:
    """What is gone from the store: checkpoints (for `ServiceControl.swept`) and litter directories."""

    checkpoint_ids: tuple[int, ...]
    litter: tuple[str, ...]


def sweep(
    store: CheckpointStore,
    removable: Sequence[CheckpointRecord],
    live: Collection[str],
    now: float,
    grace: float,
    *,
    jobs: Collection[str] = (),
    live_epochs: Collection[int] | None = None,
) -> Swept:
    """Delete `removable`, then the litter of their jobs and of `jobs`. Crashed half-way, it is simply run again.

    live: uris that stay whatever else is said: every checkpoint the ledger keeps. now: Unix time by the store's
    clock. grace: seconds since a directory's last write. live_epochs: the lease epochs of those jobs that may
    still commit, where the caller knows them. Without them a directory is litter only when it is incomplete and
    of an epoch before the newest of its job, and one that has a manifest always stays.
    """
    live_uris = set(live)
    removed = [record for record in removable if record.uri not in live_uris and CheckpointPath.parse(record.uri)]
    for record in removed:
        _delete(store, record.uri)
    litter = [
        uri
        for job in sorted({record.job_id for record in removable} | set(jobs))
        for uri in _litter(store, job, live_uris, now - grace, live_epochs)
    ]
    for uri in litter:
        _delete(store, uri)
    return Swept(tuple(record.checkpoint_id for record in removed), tuple(litter))


@dataclass(slots=True)
class _Directory:
    path: CheckpointPath
    last_write: float = 0.0
    complete: bool = False


def _litter(
    store: CheckpointStore, job: str, live_uris: Collection[str], before: float, live_epochs: Collection[int] | None
) -> list[str]:
    """Directories of a job, last written before an instant, that can never be committed any more."""
    directories: dict[str, _Directory] = {}
    for entry in (*store.entries(job), *store.unfinished(job)):
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
        if uri not in live_uris and directory.last_write < before and _can_never_commit(directory, newest, live_epochs)
    ]


def _can_never_commit(directory: _Directory, newest: int, live_epochs: Collection[int] | None) -> bool:
    if live_epochs is None:
        return not directory.complete and directory.path.epoch < newest
    return directory.path.epoch not in live_epochs


def _delete(store: CheckpointStore, uri: str) -> None:
    """The manifest first: whatever happens meanwhile, what is left is no checkpoint."""
    store.delete(f"{uri}/{MANIFEST}")
    store.delete(uri)
