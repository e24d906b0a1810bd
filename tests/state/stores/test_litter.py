"""The sweeper takes what it is given and litter that nobody can commit, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from elastic_core.domain import Layout
from elastic_core.errors import InfrastructureError
from elastic_core.protocol.records import CheckpointRecord
from elastic_core.state.format.checkpoint_format import (
    CheckpointHeader,
    checkpoint_uri,
    verify,
    write_manifest,
    write_shard,
)
from elastic_core.state.stores import litter
from elastic_core.state.stores.litter import NotSwept, Swept, sweep
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.state.stores.store import CheckpointStore
from tests.host.worker_user.nesting import nested

GRACE = 600.0


def later() -> float:
    """A moment at which everything written by now is older than the grace."""
    return time.time() + GRACE + 60


def checkpoint(
    store: CheckpointStore, step: int, epoch: int, nonce: str = "a", job: str = "job", complete: bool = True
) -> str:
    header = CheckpointHeader(job_id=job, step=step, samples=step, epoch=epoch)
    uri = checkpoint_uri(header, nonce)
    info = write_shard(store, uri, 0, {"w": torch.zeros(3)})
    if complete:
        write_manifest(store, uri, [info], header, {})
    return uri


def record(uri: str, checkpoint_id: int = 1, job: str = "job") -> CheckpointRecord:
    return CheckpointRecord(
        checkpoint_id=checkpoint_id, job_id=job, lineage=0, step=1, samples=1, epoch=1, segment_id="s", uri=uri,
        manifest_sha256="", size_bytes=1, layout=Layout(), metrics={}, committed_at=0.0, final=False,
    )  # fmt: skip


def directories(store: CheckpointStore) -> set[str]:
    return {entry.key.rpartition("/")[0] for entry in (*store.entries(""), *store.unfinished(""))}


def test_what_the_ledger_gave_up_is_deleted_and_what_it_keeps_is_not(store: CheckpointStore) -> None:
    old, kept = checkpoint(store, 1, epoch=1), checkpoint(store, 2, epoch=1)
    assert sweep(store, [record(old, 17)], {kept}, time.time(), GRACE) == Swept((17,), ())
    assert directories(store) == {kept}
    verify(store, kept)


def test_a_checkpoint_that_is_to_stay_stays_even_if_it_was_given(folder_store: CheckpointStore) -> None:
    champion = checkpoint(folder_store, 1, epoch=1)
    assert sweep(folder_store, [record(champion)], {champion}, later(), GRACE) == Swept((), ())
    assert directories(folder_store) == {champion}


def test_litter_of_fenced_epochs_goes_once_it_is_old(store: CheckpointStore) -> None:
    """Epoch 1 died between its shards and its manifest, epoch 2 between its manifest and its commit, 3 runs."""
    kept = checkpoint(store, 1, epoch=1)
    half = checkpoint(store, 2, epoch=1, nonce="b", complete=False)
    uncommitted = checkpoint(store, 2, epoch=2)
    running = checkpoint(store, 2, epoch=3, complete=False)
    young = sweep(store, [], {kept}, time.time(), GRACE, jobs=["job"], live_epochs={3})
    assert young == Swept((), ())
    swept = sweep(store, [], {kept}, later(), GRACE, jobs=["job"], live_epochs={3})
    assert swept == Swept((), (half, uncommitted))
    assert directories(store) == {kept, running}


def test_what_a_killed_writer_left_of_a_file_is_litter_too(folder_store: CheckpointStore) -> None:
    newer = checkpoint(folder_store, 2, epoch=2)
    folder = Path(folder_store.url) / "job" / "lineage-0" / "step-0000000001-epoch-1-x"
    folder.mkdir(parents=True)
    (folder / f".shard-0.safetensors.{'0' * 16}.tmp").write_bytes(b"half")
    swept = sweep(folder_store, [], {newer}, later(), GRACE, jobs=["job"])
    assert swept.litter == ("job/lineage-0/step-0000000001-epoch-1-x",)
    assert not folder.exists()


def test_without_the_ledgers_word_only_what_can_never_be_a_checkpoint_is_litter(folder_store: CheckpointStore) -> None:
    complete = checkpoint(folder_store, 1, epoch=1)
    half = checkpoint(folder_store, 2, epoch=1, nonce="b", complete=False)
    newest = checkpoint(folder_store, 2, epoch=2, complete=False)
    assert sweep(folder_store, [], set(), later(), GRACE, jobs=["job"]).litter == (half,)
    assert directories(folder_store) == {complete, newest}


def test_other_jobs_and_other_files_are_never_touched(folder_store: CheckpointStore) -> None:
    kept = checkpoint(folder_store, 3, epoch=9)
    other = checkpoint(folder_store, 1, epoch=1, job="job-2", complete=False)
    foreign = (
        "job/notes.txt",
        "job/audit/lineage-0/step-0000000001-epoch-1-a-rank0.npy",
        "job/lineage-0/step-1/x",
        "jobs",
    )
    for key in foreign:
        folder_store.put(key, b"x")
    nested = [f"{job}/lineage-0/step-0000000001-epoch-1-a/shard-0.safetensors" for job in ("other/job", "job/inner")]
    for key in nested:
        folder_store.put(key, b"x")
    assert sweep(folder_store, [], {kept}, later(), GRACE, jobs=["job"], live_epochs=set()) == Swept((), ())
    assert {*foreign, *nested} < set(folder_store.list(""))
    assert other in directories(folder_store)


@pytest.mark.parametrize("uri", ["job", "job/lineage-0", "job/lineage-0/step-1-epoch-1-a", "notes"])
def test_a_record_whose_address_is_no_checkpoints_deletes_nothing(folder_store: CheckpointStore, uri: str) -> None:
    kept = checkpoint(folder_store, 1, epoch=1)
    assert sweep(folder_store, [record(uri)], {kept}, later(), GRACE).checkpoint_ids == ()
    assert directories(folder_store) == {kept}


class Failing(LocalStore):
    """Fails once the manifest is gone, as a machine that dies in the middle of a sweep."""

    def delete(self, prefix: str) -> None:
        if not prefix.endswith("manifest.json"):
            raise InfrastructureError("the machine died")
        super().delete(prefix)


def test_a_sweep_that_dies_leaves_no_half_checkpoint_and_is_run_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    old = checkpoint(store, 1, epoch=1)
    with pytest.raises(InfrastructureError):
        sweep(Failing(tmp_path), [record(old, 5)], set(), later(), GRACE)
    assert store.size(f"{old}/manifest.json") is None
    assert sweep(store, [record(old, 5)], set(), later(), GRACE).checkpoint_ids == (5,)
    assert directories(store) == set()


def test_sweeping_what_is_gone_already_is_no_error(folder_store: CheckpointStore) -> None:
    uri = "job/lineage-0/step-0000000001-epoch-1-a"
    assert sweep(folder_store, [record(uri, 3)], set(), later(), GRACE).checkpoint_ids == (3,)


ODD = "job/lineage-0/step-0000000001-epoch-1-a\\b"  # a name that no store takes


def test_a_record_that_no_store_takes_keeps_no_other_from_being_swept(
    folder_store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    old = checkpoint(folder_store, 2, epoch=1)
    swept = sweep(folder_store, [record(ODD, 5), record(old, 6)], set(), later(), GRACE)
    assert swept == Swept((6,), ())
    assert directories(folder_store) == set()
    assert f"{ODD} is passed over" in caplog.text


def test_what_a_jobs_code_calls_a_folder_keeps_no_other_litter(folder_store: CheckpointStore) -> None:
    half = checkpoint(folder_store, 1, epoch=1, complete=False)
    newest = checkpoint(folder_store, 2, epoch=2)
    named = Path(folder_store.url, ODD)
    named.mkdir()
    (named / "x").write_bytes(b"x")
    assert sweep(folder_store, [], {newest}, later(), GRACE, jobs=["job"]).litter == (half,)
    assert named.exists()


def test_folders_that_are_nested_deeper_than_python_recurses_keep_no_litter(folder_store: CheckpointStore) -> None:
    """Neither beside a checkpoint nor in one."""
    half = checkpoint(folder_store, 1, epoch=1, complete=False)
    newest = checkpoint(folder_store, 2, epoch=2)
    with nested(Path(folder_store.url, "job", "deep")), nested(Path(folder_store.url, half, "deep")):
        assert sweep(folder_store, [], {newest}, later(), GRACE, jobs=["job"]).litter == (half,)
    assert not Path(folder_store.url, half).exists()
    assert Path(folder_store.url, newest).exists()


class Refusing(LocalStore):
    """Has one directory that cannot be deleted."""

    def delete(self, prefix: str) -> None:
        if "epoch-7" in prefix:
            raise InfrastructureError(f"Cannot delete {prefix}: Operation not permitted.")
        super().delete(prefix)


def test_what_cannot_be_deleted_now_is_told_once_all_else_is_gone(tmp_path: Path) -> None:
    store = Refusing(tmp_path)
    fixed, old = checkpoint(store, 1, epoch=7), checkpoint(store, 2, epoch=1, nonce="b")
    half = checkpoint(store, 1, epoch=1, job="other", complete=False)
    with pytest.raises(NotSwept, match=r"1 could not be swept, all else was: .*epoch-7.* not permitted") as told:
        sweep(store, [record(fixed, 5), record(old, 6)], set(), later(), GRACE, jobs=["other"], live_epochs=set())
    assert told.value.swept == Swept((6,), (half,))
    assert directories(store) == {fixed}


class Away(LocalStore):
    """Counts what it is asked, and answers nothing."""

    asked = 0

    def _away(self, prefix: str) -> NoReturn:
        self.asked += 1
        raise InfrastructureError("the store is away")

    delete = size = _away


def test_a_store_that_is_away_is_not_asked_for_each_directory(tmp_path: Path) -> None:
    store = Away(tmp_path)
    uris = [f"job/lineage-0/step-{step:010d}-epoch-1-a" for step in range(100)]
    with pytest.raises(InfrastructureError, match="the store is away"):
        sweep(store, [record(uri) for uri in uris], set(), later(), GRACE)
    assert store.asked == 2


def test_what_lies_below_checkpoints_or_beyond_so_many_files_is_not_looked_at(
    folder_store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    half = checkpoint(folder_store, 1, epoch=1, complete=False)
    newest = checkpoint(folder_store, 2, epoch=2)
    deep = Path(folder_store.url, half, "deep")
    deep.mkdir()
    for number in range(300):
        (deep / str(number)).touch()
    monkeypatch.setattr(litter, "MOST_ENTRIES", 100)
    assert sweep(folder_store, [], {newest}, later(), GRACE, jobs=["job"], live_epochs={2}).litter == (half,)
    assert "more than" not in caplog.text
    for number in range(300):
        Path(folder_store.url, "job", f"beside-{number}").touch()
    listed = list(folder_store.first_levels("job", 3, 100))  # type: ignore[attr-defined]
    assert 90 <= len(listed) <= 100
    assert "job holds more than 100 files and folders: the others are not looked at" in caplog.text


class Ticking:
    """A clock that goes on by so many seconds whenever it is looked at."""

    def __init__(self, seconds: float) -> None:
        self._now, self._seconds = 0.0, seconds

    def __call__(self) -> float:
        self._now += self._seconds
        return self._now


def test_what_takes_long_to_delete_is_before_all_else_in_some_sweeps_only(folder_store: CheckpointStore) -> None:
    """One turn is enough for two of three: where they came in order, the third never had one."""
    first = set()
    for _ in range(40):
        given_up = [record(checkpoint(folder_store, step, epoch=1, job="old"), step, "old") for step in range(1, 4)]
        swept = sweep(folder_store, given_up, set(), later(), GRACE, jobs=[], live_epochs=set(), clock=Ticking(15))
        first |= set(swept.checkpoint_ids)
    assert first == {1, 2, 3}


def test_a_sweep_ends_with_its_turn_and_every_job_has_one_sometime(
    folder_store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [f"job-{number}" for number in range(4)]
    halves = {checkpoint(folder_store, 1, epoch=1, job=job, complete=False) for job in jobs}
    given_up = [record(checkpoint(folder_store, step, epoch=1, job="old"), step, "old") for step in range(1, 4)]
    swept = sweep(folder_store, given_up, set(), later(), GRACE, jobs=jobs, live_epochs=set(), clock=Ticking(15))
    assert len(swept.checkpoint_ids) == 2
    assert len(swept.litter) <= 2
    assert "1 of 3 are left to the next sweep" in caplog.text
    found = set(swept.litter)
    for _ in range(200):
        found |= set(
            sweep(folder_store, [], set(), later(), GRACE, jobs=jobs, live_epochs=set(), clock=Ticking(25)).litter
        )
        if halves <= found:
            return
    raise AssertionError(f"some never had a turn: {halves - found}")
