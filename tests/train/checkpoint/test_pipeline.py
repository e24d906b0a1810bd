"""An interval checkpoint is asynchronous: what it holds, what goes wrong, and what becomes of the reads. From when at
the latest the lease holds that one which ends a segment passes on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from elastic_core.domain import Layout, Slot
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.trainer import CommitAnswer, Directive
from elastic_core.spec import JobSpec
from elastic_core.state.format.checkpoint_format import read_manifest, read_tensors
from elastic_core.state.layout.layout import Mesh, StateLayout
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.checkpoint.collection import Collection
from elastic_core.train.checkpoint.committing import Answered
from elastic_core.train.checkpoint.pipeline import CheckpointPipeline, Ending, SaveFailed
from elastic_core.train.checkpoint.rank_part import Content
from elastic_core.train.checkpoint.restore import read_weights
from elastic_core.train.data.audit import ReadLog
from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.places import Places
from tests.train import forked
from tests.train.ledger import make_order

SPEC = {
    "name": "job",
    "entry_point": "tests.train.tasks:recorded",
    "work": {"samples": 100},
    "batch": {"min": 1, "max": 16},
    "slots": {"min": 1, "max": 1},
}
ORDER = make_order(JobSpec.model_validate(SPEC), slots=1, batch=4, total=100, dataset=100)


class HeldBack(LocalStore):
    """A store that is slow: writes of names that end in `what` wait until they are let go, and may then fail."""

    def __init__(self, root, what):
        super().__init__(root)
        self.what, self.go_on, self.fails = what, threading.Event(), False

    def put(self, key, source):
        if key.endswith(self.what):
            assert self.go_on.wait(30)
            if self.fails:
                raise InfrastructureError("the disk is full")
        super().put(key, source)


class Commits(list):
    """In the place of rank 0's `Committer`: what it was given."""

    send_interval = list.append


@pytest.fixture(params=[".safetensors", "manifest.json"])
def store(tmp_path, request):
    store = HeldBack(tmp_path, request.param)
    yield store
    store.go_on.set()


def pipeline_of(store, commits, reads=None):
    group = Group()
    return CheckpointPipeline(
        group, store, reads or ReadLog(keep_indices=False), commits, Places(group, Layout(data=1))
    )


def until_over(pipeline):
    """As the steps do: go on whenever this rank is ready."""
    while pipeline.pending:
        if pipeline.ready:
            pipeline.advance()


def content(step, weight):
    return Content(
        step=step, samples=4 * step, shared={"model/w": weight}, own={}, scalars={}, metrics={}, timings={}
    )  # fmt: skip


def test_a_checkpoint_holds_its_steps_state_though_training_goes_on_while_it_is_written(store):
    commits, weight = Commits(), torch.arange(6.0)
    pipeline = pipeline_of(store, commits)
    pipeline.save_async(ORDER, content(1, weight))
    weight += 100.0  # the next step
    assert pipeline.pending
    assert commits == []
    store.go_on.set()
    until_over(pipeline)
    (commit,) = commits
    assert (commit.step, commit.final) == (1, False)
    manifest = read_manifest(store, commit.uri, commit.manifest_sha256)
    assert torch.equal(read_tensors(store, manifest, ["model/w"])["model/w"], torch.arange(6.0))


def test_nobody_is_ready_before_the_write_is_done(store):
    pipeline = pipeline_of(store, Commits())
    assert not pipeline.ready
    pipeline.save_async(ORDER, content(1, torch.zeros(3)))
    if store.what == "manifest.json":
        while not pipeline.ready:
            pass
        pipeline.advance()  # the parts are written; now the manifest
    assert not pipeline.ready
    assert pipeline.pending


def test_a_write_that_fails_is_given_up_and_its_reads_go_with_the_next_checkpoint(store):
    commits, reads = Commits(), ReadLog(keep_indices=False)
    pipeline = pipeline_of(store, commits, reads)
    reads.record(0, np.arange(0, 4))
    pipeline.save_async(ORDER, content(1, torch.zeros(3)))
    reads.record(0, np.arange(4, 8))
    store.fails = True
    store.go_on.set()
    with pytest.raises(SaveFailed, match=r"step 1 could not be written: .*the disk is full"):
        until_over(pipeline)
    assert not pipeline.pending
    assert commits == []
    store.fails = False
    pipeline.save_async(ORDER, content(2, torch.zeros(3)))
    pipeline.wait()
    (commit,) = commits
    (epoch,) = commit.fingerprints["epochs"]
    assert epoch["count"] == 8


def test_a_second_checkpoint_waits_for_the_first(store):
    pipeline = pipeline_of(store, Commits())
    pipeline.save_async(ORDER, content(1, torch.zeros(3)))
    with pytest.raises(AssertionError, match="one checkpoint at a time"):
        pipeline.save_async(ORDER, content(2, torch.zeros(3)))


def partitioned(step, measure=None, rank=0, world=1):
    """What a rank saves of a model that is cut: here nothing but what is the rank's own."""
    slots = tuple(Slot("n", index, "cpu") for index in range(world))
    nothing = Collection(StateLayout(Mesh.of(Layout(data=world)), {}, slots), {}, {}, {})
    own = {f"rng/torch/{rank}": torch.zeros(3)}
    return Content(
        step=step, samples=4 * step, shared={}, own=own, scalars={}, metrics={}, timings={}, measure=measure,
        collection=nothing,
    )  # fmt: skip


@pytest.mark.parametrize("ending", [Ending(segment=False), Ending()], ids=["interval", "boundary"])
def test_a_checkpoint_that_cannot_be_read_again_to_be_evaluated_is_given_up_as_one_that_cannot_be_written(
    tmp_path, ending
):
    commits, reads = Commits(), ReadLog(keep_indices=False)
    pipeline = pipeline_of(LocalStore(tmp_path / "store"), commits, reads)
    reads.record(0, np.arange(0, 4))
    elsewhere = LocalStore(tmp_path / "elsewhere")
    pipeline.save_async(ORDER, partitioned(1, lambda uri: {"weights": len(read_weights(elsewhere, uri))}), ending)
    with pytest.raises(SaveFailed, match="step 1 could not be written: it could not be read again to be evaluated: "):
        pipeline.wait()
    assert not pipeline.pending
    assert commits == []
    pipeline.save_async(ORDER, partitioned(2, lambda _uri: {"held_out": 0.5}))
    pipeline.wait()
    (commit,) = commits
    assert (commit.step, commit.metrics) == (2, {"held_out": 0.5})
    (epoch,) = commit.fingerprints["epochs"]
    assert epoch["count"] == 4


def test_what_is_wrong_with_the_evaluation_itself_is_no_fault_of_the_checkpoint(tmp_path):
    def measure(_uri):
        raise UserError("evaluate() must give a mapping")

    pipeline = pipeline_of(LocalStore(tmp_path), Commits())
    pipeline.save_async(ORDER, partitioned(1, measure))
    with pytest.raises(UserError, match="must give a mapping"):
        pipeline.wait()


WRITING = 1.0


class Slow(LocalStore):
    """Writing rank 0's part and the manifest takes so many seconds each."""

    def put(self, key, source):
        if key.endswith(("shard-0.safetensors", "manifest.json")):
            time.sleep(WRITING)
        super().put(key, source)


class Boundary:
    """In the place of rank 0's `Committer`: every commit is answered at once."""

    busy = False

    def send_final(self, _commit):
        return Answered(CommitAnswer(checkpoint_id=1, directive=Directive.BOUNDARY, reason=""), time.monotonic())


def saves(folder: str, rank: int, cut: bool) -> int:
    """One of two ranks; writes down when it sent the commit, or from when on it was sent for sure."""
    group, store = Group.form(RunDir(Path(folder)), rank, 2, torch.device("cpu")), Slow(Path(folder) / "store")
    committer = Boundary() if rank == 0 else None
    pipeline = CheckpointPipeline(
        group, store, ReadLog(keep_indices=False), committer, Places(group, Layout(data=2))
    )  # fmt: skip
    saved = partitioned(1, rank=rank, world=2) if cut else content(1, torch.zeros(3))
    answered = pipeline.save(ORDER, saved, Ending())
    (Path(folder) / f"sent-{rank}").write_text(str(answered.sent))
    group.close()
    return 0


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_a_rank_knows_the_next_lease_to_hold_from_after_the_writing_and_before_the_commit(tmp_path, cut):
    """Writing may take longer than a lease lives: from its beginning on, the next lease would be over at once."""
    ranks = [forked.start(saves, str(tmp_path), rank, cut, log=tmp_path / f"log-{rank}") for rank in range(2)]
    assert forked.join(ranks) == [0, 0], [(tmp_path / f"log-{rank}").read_text() for rank in range(2)]
    commit, known = (float((tmp_path / f"sent-{rank}").read_text()) for rank in range(2))
    parts_alone = 0.0 if cut else WRITING  # of a model that is not cut the manifest is written last thing before
    assert commit - parts_alone - WRITING / 2 < known < commit
