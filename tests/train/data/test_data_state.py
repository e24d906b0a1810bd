"""What a checkpoint says of its data is what real workers read: the virtual file system against their own records."""

from __future__ import annotations

import json
from collections import defaultdict

import pandas as pd
import pytest

from elastic_core.errors import UserError
from elastic_core.state.order.block_order import Blocks
from elastic_core.train.data.batches import DataPlan
from elastic_core.train.data.data_state import DataState, check_resumed
from elastic_core.view.filesystem import ElasticFileSystem
from tests.train.job import Job


def reads(job: Job, rank: int) -> dict[int, list[int]]:
    """What reached a rank's loss, by step from 1 on."""
    found: dict[int, list[int]] = defaultdict(list)
    for line in (job.folder / f"seen-rank{rank}").read_text().splitlines():
        before, indices = json.loads(line)
        found[before + 1] += indices
    return found


def test_the_tree_tells_what_every_rank_of_a_resized_job_read_at_every_step(new_job) -> None:
    job = new_job(entry="collecting", rows=57, total=200)
    assert job.run(2, 20, segment_steps=3) == [0, 0]
    job.ledger.set(next_batches=[14])  # the next one's lease passes on to it, with another batch
    assert job.run(1, 11, segment_steps=2) == [0]
    files = ElasticFileSystem(store=str(job.store))
    (lineage,) = files.ls("job/checkpoints", detail=False)
    stretches = []
    for path in files.ls(lineage, detail=False):
        state = DataState.from_scalars(json.loads(files.cat_file(f"{path}/scalars.json")))
        assert state is not None
        header = json.loads(files.cat_file(f"{path}/header.json"))
        stretches.append((state.since_step, header["step"], state.global_batch, header["layout"]["data"]))
        for step in range(state.since_step + 1, header["step"] + 1):
            for rank in range(header["layout"]["data"]):
                with files.open(f"{path}/data/step-{step}/rank-{rank}.csv") as file:
                    assert pd.read_csv(file)["index"].tolist() == reads(job, rank)[step], (path, step, rank)
    assert stretches[:3] == [(0, 3, 20, 2), (3, 5, 11, 1), (5, 7, 14, 1)]
    first = files.ls(lineage, detail=False)[0]
    with files.open(f"{first}/data/batch=11,data=1/step-5/rank-0.csv") as file:
        assert pd.read_csv(file)["index"].tolist() == reads(job, 0)[5]  # told beforehand


def test_a_step_outside_the_stretch_is_refused() -> None:
    state = DataState(
        seed=1, dataset_samples=10, total_samples=95, global_batch=20, since_step=2, since_samples=30
    )  # fmt: skip
    assert state.last_step == 6
    assert state.step(6, 0, 1).num_samples == 5
    for number in (2, 7):
        with pytest.raises(UserError, match="not among steps 3 to 6"):
            state.step(number, 0, 1)


BLOCKS = Blocks((3, 3, 3, 1), 2)


def test_blocks_are_kept_in_the_checkpoint_and_old_checkpoints_know_none() -> None:
    plan = DataPlan(1, 10, 95, 4, BLOCKS)
    scalars = json.loads(json.dumps(DataState.of(plan, 20, 2, 30).to_scalars()))
    assert (scalars["order"], scalars["data"]["blocks"]) == (2, [[3, 3], [1, 1]])
    state = DataState.from_scalars(scalars)
    assert state is not None
    assert state.plan.blocks == BLOCKS
    assert state.step(3, 0, 1).micro[0].indices.tolist() == BLOCKS.batch(1, 30, 20).tolist()
    plain = DataState.of(DataPlan(1, 10, 95, 4), 20, 2, 30).to_scalars()
    assert plain["order"] == 1
    assert not {"blocks", "window"} & plain["data"].keys()


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (BLOCKS, None, "was read in 4 blocks of 10 samples, 2 to a window, the data set is read sample by sample"),
        (None, BLOCKS, "was read sample by sample, the data set is read in 4 blocks"),
        (BLOCKS, Blocks((3, 3, 3, 1), 3), "3 to a window"),
        (BLOCKS, Blocks((3, 3, 4), 2), "in 3 blocks of 10"),
    ],
)
def test_a_cursor_of_another_order_is_refused(before, now, says) -> None:
    scalars = DataState.of(DataPlan(1, 10, 95, None, before), 20, 0, 0).to_scalars()
    with pytest.raises(UserError, match=says):
        check_resumed(DataPlan(1, 10, 95, None, now), scalars)


def test_the_same_order_goes_on_and_so_does_a_checkpoint_of_before_it_was_kept() -> None:
    for blocks in (None, BLOCKS):
        plan = DataPlan(1, 10, 95, None, blocks)
        check_resumed(plan, DataState.of(plan, 20, 0, 0).to_scalars())
    check_resumed(DataPlan(1, 10, 95, None), {"order": 1})
