"""A kill at every named point leaves the checkpoint before it whole, and the next start ends up where an undisturbed
job does, bit for bit.

Real processes: two that train, or three that change a layout between them. Each point is armed in one of them.
"""

from __future__ import annotations

import math
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core import crashing
from elastic_core.crashing import CONTROL_POINTS, POINTS, arm
from elastic_core.domain import Slot
from elastic_core.host.exits import ExitCode
from elastic_core.host.rundir import RunDir
from elastic_core.state.format.checkpoint_format import read_manifest, verify
from elastic_core.state.format.inspecting import compare, find
from elastic_core.state.reshard.peers import Address, RangeServer
from elastic_core.state.stores.litter import sweep
from elastic_core.state.stores.store_urls import open_store
from tests.state.changing_ranks import METAS, SECRET, STATE, change, laid, places
from tests.state.loading_ranks import memories, save
from tests.train import forked
from tests.train.job import Job

CODE = Path(crashing.__file__).parent
CHANGES = [point for point in POINTS if point.startswith(("plan.", "transfer."))]
WITHIN_CHANGES = ("transfer.piece-fetched",)  # from the memory of others: `tests/train/runs/test_resizes_move_least.py`
RESIZES = ("resize.left", "resize.taking-lease", "resize.serving")  # one of two leaves
RANK_0_LEAVES = "resize.taking-lease"  # rank 0 does, here; else rank 1
OF_RANK_0 = ("save.manifest", "commit.", "resize.left")  # what only rank 0 does; else the other one is killed
BATCH, INTERVAL, SEGMENT = 16, 2, 4  # samples; steps between checkpoints and of the first segment


def test_every_point_lies_somewhere_once_and_has_a_name() -> None:
    texts = [path.read_text() for path in CODE.rglob("*.py")]
    lying = [name for text in texts for name in re.findall(r"crash_here\(\"(.*?)\"\)", text)]
    assert sorted(lying) == sorted([*POINTS, *CONTROL_POINTS])
    with pytest.raises(ValueError, match=r"'save\.never' is no crash point\. There are: save\.begun, "):
        arm("save.never")


def job_in(folder: Path) -> Job:
    spec = {"checkpoints": {"interval_seconds": None, "interval_steps": INTERVAL}}
    return Job(folder, total=9 * BATCH, spec=spec, params={"sleep": 0.01})


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job after its first segment, to be copied."""
    job = job_in(tmp_path_factory.mktemp("begun") / "job")
    job.folder.mkdir()
    assert job.run(2, BATCH, segment_steps=SEGMENT) == [0, 0], job.logs()
    return job


def copy_of(begun: Job, folder: Path) -> Job:
    shutil.copytree(begun.folder, folder)
    job = job_in(folder)
    job.epoch = begun.epoch
    return job


@pytest.fixture(scope="module")
def undisturbed(begun: Job, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Job]]:
    """The whole job, by the number of its workers in the last steps."""
    jobs = {}
    for world in (2, 1):
        jobs[world] = copy_of(begun, tmp_path_factory.mktemp("undisturbed") / "job")
        if world == 1:
            assert jobs[1].run(2, BATCH, segment_steps=2) == [0, 0]
        assert jobs[world].run(world, BATCH) == [0] * world
    return jobs


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("point", "at_a_boundary"),
    [
        *((point, point in RESIZES) for point in POINTS if point not in WITHIN_CHANGES),
        *((point, True) for point in ("save.manifest-written", "commit.unsent", "commit.unheard")),
    ],
)
def test_training_killed_there_goes_on_from_the_checkpoint_before(
    begun: Job, undisturbed: dict[int, Job], tmp_path: Path, point: str, at_a_boundary: bool
) -> None:
    job = copy_of(begun, tmp_path / "job")
    last = job.ledger.commits()[-1]
    victim = 0 if point.startswith(OF_RANK_0) else 1
    job.crash = (victim, point)
    resized = point in RESIZES
    if resized:
        job.ledger.set(next_slots=[[1 if point == RANK_0_LEAVES else 0]])  # who stays begins anew alone
    if at_a_boundary:
        job.spec = {}  # no checkpoint before it
    codes = job.run(2, BATCH, segment_steps=2 if at_a_boundary else None)
    assert codes[victim] == -signal.SIGKILL, f"{point} was not reached: {codes}\n{job.logs()}"
    assert codes[1 - victim] == (0 if resized else ExitCode.INFRASTRUCTURE), job.logs()

    store, commits = open_store(str(job.store)), job.ledger.commits()
    assert last in commits
    for commit in commits:
        verify(store, commit.uri, commit.manifest_sha256)
    for there in find(store, "job"):  # whole, or no checkpoint
        assert there.fault in ("", "incomplete")
        if there.header is not None:
            verify(store, there.uri)

    job.crash, job.epoch = None, job.epoch + (1 if resized else 0)
    world = 1 if resized else 2
    assert job.run(world, BATCH) == [0] * world, job.logs()
    end, wanted = job.ledger.commits()[-1], undisturbed[world].ledger.commits()[-1]
    assert (end.finished, end.step) == (True, wanted.step) == (True, 9)
    other = open_store(str(undisturbed[world].store))
    found = compare(store, read_manifest(store, end.uri), other, read_manifest(other, wanted.uri))
    assert found.tensors == ()
    assert found.num_equal > 20

    known = {commit.uri for commit in job.ledger.commits()}
    sweep(store, [], known, now=math.inf, grace=0.0, jobs=["job"], live_epochs=())
    assert {there.uri for there in find(store, "job")} == known  # what the crash left is known for litter
    assert list(store.unfinished("job")) == []


@pytest.mark.parametrize("point", CHANGES)
def test_a_change_of_layout_killed_there_harms_no_checkpoint_and_is_made_from_it_anew(
    tmp_path: Path, memory_folder: Path, point: str
) -> None:
    """Old memory of one device lives, the other's is gone: its part comes from the store."""
    store, old = open_store(str(tmp_path / "store")), laid(2, 1, places(0, 1))
    uri = save(store, old, METAS, STATE).uri
    RunDir(tmp_path / "run").create()

    def run(generation: int, servers: dict[Slot, Address], victim: int | None) -> list[int]:
        ranks = ((rank, generation, servers, uri, point if rank == victim else None) for rank in range(3))
        folders, log = (str(tmp_path), str(memory_folder)), tmp_path / "log"
        return forked.join([forked.start(change, *folders, *rank, log=log) for rank in ranks])

    with RangeServer(memories(old, METAS, STATE)[old.slots[0]], SECRET) as server:
        codes = run(1, {old.slots[0]: server.address}, victim=1)
    assert codes == [ExitCode.INFRASTRUCTURE, -signal.SIGKILL, ExitCode.INFRASTRUCTURE], (tmp_path / "log").read_text()
    assert list(memory_folder.iterdir()) == []
    verify(store, uri)
    assert run(2, {}, victim=None) == [0, 0, 0], (tmp_path / "log").read_text()
    assert list(memory_folder.iterdir()) == []
