"""How far a job's history is read, and which of its checkpoints can be restored from."""

from __future__ import annotations

from sqlalchemy import select

from elastic_core.control.ledger import lineage
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import CheckpointRow
from elastic_core.control.plane import LedgerControl
from tests.builders import FACTS, Life, a_commit, a_spec

STEPS = (1, 2, 3, 4, 5)


def committed(control: LedgerControl, *bad_steps: int) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    trainer = control.trainer(order.token)
    numbers = {step: trainer.commit(a_commit(order, step)).checkpoint_id for step in STEPS}
    for step in bad_steps:
        trainer.mark_bad(numbers[step], "a flipped bit")


def steps_read(control: LedgerControl, most: int | None) -> list[int]:
    def read(tx: Tx) -> list[int]:
        walk, wanted = lineage._WALK, {"head": tx.job("job-a").head_id, "most": most, "job": "job-a"}
        steps = select(CheckpointRow.step).join(walk, walk.c.id == CheckpointRow.id).order_by(CheckpointRow.id.desc())
        return list(tx.session.scalars(steps, wanted))

    return control._ledger.read(read)


def test_the_whole_chain_goes_back_to_the_first_commit(control: LedgerControl) -> None:
    committed(control)
    assert steps_read(control, None) == [5, 4, 3, 2, 1]


def test_no_more_of_it_is_read_than_has_the_usable_ones_that_are_wanted(control: LedgerControl) -> None:
    committed(control, 4, 3)
    assert steps_read(control, 2) == [5, 4, 3, 2]


def test_corrupt_ones_are_passed_over(control: LedgerControl) -> None:
    committed(control, 4, 3)

    def read(tx: Tx) -> tuple[list[int], set[int], set[int]]:
        job = tx.job("job-a")
        found = lineage.newest_usable(tx, job, job.head_id, 2)
        ids = lineage.newest_usable_ids(tx, job, job.head_id, 2)
        return [row.step for row in found], {row.id for row in found}, ids

    steps, ids, same_ids = control._ledger.read(read)
    assert steps == [5, 2]
    assert ids == same_ids


def test_a_job_without_a_commit_has_no_chain(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    assert steps_read(control, None) == []
    assert control._ledger.read(lambda tx: lineage.newest_usable_ids(tx, tx.job("job-a"), None, 2)) == set()
