"""A resize in place, by real processes: nothing comes from the store, ranks exchange what the new layout needs and no
more, and all goes on as from a restart, bit for bit."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from elastic_core.domain import Layout, Slot, to_json
from elastic_core.host.exits import ExitCode
from elastic_core.state.format.checkpoint_format import read_tensors
from elastic_core.state.format.manifest import read_manifest
from elastic_core.state.layout.layout import of_one_rank
from elastic_core.state.reshard.change_plan import holdings, plan_change
from elastic_core.state.stores.local_store import LocalStore
from tests.effort import sample
from tests.state.moving import needed_bytes, shared_by_ranks, written_under
from tests.train import forked
from tests.train.job import Job
from tests.train.runs.test_in_place import wait_for

SMALL = {"width": 16, "depth": 2, "heads": 4, "context": 8, "train_bytes": 10_000, "learning_rate": 1e-2}
BYTES = {"entry": "bytes_in_64", "rows": 1249, "total": 26 * 4, "params": SMALL}
BATCH = 26


def run_in_place(job: Job, before: Layout, slots: Sequence[int], after: Layout) -> list[int]:
    """Two steps on the first slots, then in place on others; exit codes."""
    job.ledger.set(next_slots=[list(slots)], next_layouts=[to_json(after)])
    workers = job.start(before.world_size, BATCH, layout=before, segment_steps=2)
    joining = [slot for slot in slots if slot >= before.world_size]
    job.run_dir().write_json(
        "wanted.json", {"request": 1, "slots": [to_json(Slot("n", slot, "cpu")) for slot in joining]}
    )
    workers += [job.start_standby(slot, slot) for slot in joining]
    return forked.join(workers)


def on_slots(slots: Sequence[int]) -> list[Slot]:
    return [Slot("n", slot, "cpu") for slot in slots]


CHANGES = [
    (Layout(data=2), [0], Layout()),
    (Layout(), [0, 1, 2], Layout(data=3)),
    (Layout(data=3, sharded=True), [0, 2], Layout(data=2, sharded=True)),
    (Layout(data=2, sharded=True), [0, 1, 2], Layout(data=3, sharded=True)),
    (Layout(tensor=2), [0, 1], Layout(pipeline=2)),
    (Layout(data=2, sharded=True), [0, 1], Layout(tensor=2)),
    (Layout(data=2), [0, 2], Layout(data=2)),
    (Layout(data=3), [1, 2], Layout(data=2)),
    (Layout(data=3, sharded=True), [2, 1], Layout(data=2, sharded=True)),
    (Layout(tensor=2), [1], Layout()),
    (Layout(tensor=2, pipeline=2), [2, 3, 0, 1], Layout(data=2, tensor=2)),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("before", "slots", "after"), sample(CHANGES, CHANGES[3], CHANGES[4], CHANGES[8]), ids=str)
def test_ranks_exchange_what_they_lack_and_read_nothing(new_job, before, slots, after) -> None:
    renewed, kept = new_job("renewed", **BYTES), new_job("kept", **BYTES)
    codes = renewed.run(before.world_size, BATCH, layout=before, segment_steps=2)
    codes += renewed.run(after.world_size, BATCH, layout=after)
    codes += run_in_place(kept, before, slots, after)
    assert set(codes) == {0}, kept.logs()
    first, last = kept.ledger.commits()
    assert last.finished
    assert kept.curve() == renewed.curve()

    store = LocalStore(kept.store)
    old, new = (read_manifest(store, commit.uri) for commit in (first, last))
    metas = shared_by_ranks(old)
    target = written_under(new, on_slots(slots))
    held = holdings(written_under(old, on_slots(range(before.world_size))), metas)
    plan = plan_change(metas, held, target, keep_map=True)
    needed = needed_bytes(target, metas)
    of_one = 0
    if before == after:  # as many ranks in the same layout: who joins takes over the random state of who left
        of_one = sum(old.metas[name].shape[0] for name in old.metas if name.startswith("rng/"))
    taken = {name: last.timings[f"restored_from_{name}_bytes"] for name in ("own_memory", "same_host", "store")}
    assert taken["store"] == 0
    assert plan.bound.store == 0
    moved_of_one = taken["same_host"] - plan.bound.device
    assert (moved_of_one > 0) == bool(of_one)
    assert moved_of_one <= of_one
    assert taken["own_memory"] + taken["same_host"] == needed + of_one


STAYING = [
    (Layout(data=2), [0], Layout()),
    (Layout(), [0, 1], Layout(data=2)),
    (Layout(data=2, sharded=True), [0, 2], Layout(data=2, sharded=True)),
    (Layout(tensor=2), [0, 2], Layout(tensor=2)),
    (Layout(data=2, tensor=2), [0, 1], Layout(tensor=2)),
    (Layout(data=2), [0, 1], Layout(pipeline=2)),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("before", "slots", "after"), sample(STAYING, *STAYING[:3], STAYING[5]), ids=str)
def test_what_a_rank_holds_just_as_it_needs_it_stays_where_it_is(new_job, before, slots, after) -> None:
    options = {**BYTES, "entry": "Located"}
    options["spec"] = {**options.get("spec", {}), "batch": {"min": BATCH, "max": BATCH}}  # no step is cut: a line each
    renewed, kept = (new_job(name, **options) for name in ("renewed", "kept"))
    codes = renewed.run(before.world_size, BATCH, layout=before, segment_steps=2)
    codes += renewed.run(after.world_size, BATCH, layout=after)
    codes += run_in_place(kept, before, slots, after)
    assert set(codes) == {0}, kept.logs()
    places = [steps for steps in places_by_process(kept).values() if len(steps) > 2]  # of those who stayed
    assert places
    for _, before_resize, *_, last in places:
        assert last <= before_resize
    expected, found = state_at_the_end(renewed), state_at_the_end(kept)
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []


def state_at_the_end(job: Job) -> dict[str, Tensor]:
    """Of its last checkpoint, without what belongs to single ranks."""
    store = LocalStore(job.store)
    last = job.ledger.commits()[-1]
    assert last.finished
    tensors = read_tensors(store, read_manifest(store, last.uri))
    return {name: tensor for name, tensor in tensors.items() if not of_one_rank(name)}


def places_by_process(job: Job) -> dict[int, list[set[tuple[int, int]]]]:
    """Where the state of each process lay, step by step."""
    found: dict[int, list[set[tuple[int, int]]]] = {}
    for line in job.logs().splitlines():
        if line.startswith("lies in "):
            _, _, process, places = line.split(" ", 3)
            found.setdefault(int(process), []).append({(start, size) for start, size in json.loads(places)})
    return found


RECORDED = {"rows": 96, "total": 300, "params": {"sleep": 0.05}}


def bytes_taken(job: Job) -> dict[str, float]:
    """By the first checkpoint after a restart in place that has begun."""
    timings = next(commit.timings for commit in job.ledger.commits() if "restore_keep" in commit.timings)
    names = ("own_memory", "same_host", "store")
    return {name: timings[f"restored_from_{name}_bytes"] for name in names}


def shrunk(new_job, spec=None, **options) -> tuple[Job, Job]:
    """Five steps on 2 and the rest on 1: carried out by new processes, and still to be, in place."""
    common = {**RECORDED, "spec": spec or {}}
    renewed, kept = new_job("renewed", **common), new_job("kept", **{**common, **options})
    assert renewed.run(2, 30, segment_steps=5) == [0, 0]
    assert renewed.run(1, 30) == [0]
    kept.ledger.set(next_slots=[[0]])
    return renewed, kept


def test_steps_that_were_taken_ahead_are_in_nobodys_state_and_what_only_a_leaver_holds_comes_from_it(new_job) -> None:
    renewed, kept = shrunk(new_job, spec={"batch": {"min": 30, "max": 30}})
    kept.ledger.set(steady=True, held_from=5)
    workers = kept.start(2, 30, segment_steps=5)
    wait_for(lambda: len(kept.curve()) >= 7, kept)  # the checkpoint of step 5 is written while these are taken
    kept.ledger.set(held_from=None)
    assert forked.join(workers) == [0, 0]
    assert "steps since the checkpoint of step 5 are dropped" in kept.logs()
    assert kept.curve() == renewed.curve()
    taken = bytes_taken(kept)
    assert taken["store"] == 0
    assert min(taken["own_memory"], taken["same_host"]) > 0  # each of both had written a part of it


@pytest.mark.nightly
def test_what_a_task_changed_after_its_loop_is_read_anew(new_job) -> None:
    renewed, kept = shrunk(new_job, params={"sleep": 0.05, "spoils_weights": True})
    assert kept.run(2, 30, segment_steps=5) == [0, 0]
    assert kept.curve() == renewed.curve()
    assert "were changed after they were saved and are read anew: ['model/" in kept.logs()
    taken = bytes_taken(kept)
    assert taken["store"] > 0
    assert taken["own_memory"] > 0  # the optimizer's


@pytest.mark.nightly
def test_a_task_that_gives_its_old_model_again_gets_the_state_from_the_checkpoint(new_job) -> None:
    renewed, kept = shrunk(new_job, params={"sleep": 0.05, "same_model": True})
    assert kept.run(2, 30, segment_steps=5) == [0, 0]
    assert kept.curve() == renewed.curve()
    assert kept.ledger.commits()[-1].timings["restored_from_store_bytes"] > 0


def test_killed_while_others_take_its_state_the_job_goes_on_from_the_commit(new_job) -> None:
    whole, killed = new_job("whole", **RECORDED), new_job("killed", **RECORDED)
    assert whole.run(1, 30, segment_steps=5) + whole.run(2, 30) == [0, 0, 0]
    killed.ledger.set(next_slots=[[0, 1]])
    workers = killed.start(1, 30, segment_steps=5)
    killed.run_dir().write_json("wanted.json", {"request": 1, "slots": [to_json(Slot("n", 1, "cpu"))]})
    killed.crash = (1, "transfer.piece-fetched")
    workers.append(killed.start_standby(1, 1))
    assert forked.join(workers) == [ExitCode.INFRASTRUCTURE, -signal.SIGKILL], killed.logs()
    killed.crash, killed.epoch = None, 2
    assert [commit.step for commit in killed.ledger.commits()] == [5]
    assert killed.run(2, 30) == [0, 0]
    assert killed.curve() == whole.curve()


@pytest.mark.nightly
def test_a_leaver_that_is_killed_is_not_waited_for(new_job) -> None:
    before, after = Layout(data=3, sharded=True), Layout(data=2, sharded=True)
    renewed, kept = new_job("renewed", **BYTES), new_job("kept", **BYTES)
    codes = renewed.run(3, BATCH, layout=before, segment_steps=2) + renewed.run(2, BATCH, layout=after)
    assert set(codes) == {0}
    kept.crash = (2, "resize.serving")
    kept.ledger.set(next_slots=[[0, 1]])
    codes = kept.run(3, BATCH, layout=before, segment_steps=2)
    assert codes == [0, 0, -signal.SIGKILL], kept.logs()
    assert kept.curve() == renewed.curve()
    assert " holds is read from the store instead: " in kept.logs()
    assert kept.ledger.commits()[-1].timings["restored_from_store_bytes"] > 0
