"""What a launch order says of the checkpoint that a new job starts from."""

from __future__ import annotations

from elastic_core.control.plane import LedgerControl
from tests.builders import FACTS, Life, a_commit, a_spec


def order_of(control: LedgerControl, job_id: str, warm_start: str | None) -> tuple[str | None, str | None]:
    control.submit(job_id, a_spec(job_id), FACTS, warm_start)
    order = Life(control, control.trainer, job_id).start()
    return order.warm_start, order.warm_start_sha256


def test_a_warm_start_carries_the_hash_that_the_ledger_committed(control: LedgerControl) -> None:
    control.submit("first", a_spec("first"), FACTS)
    first = Life(control, control.trainer, "first")
    order = first.start()
    commit = a_commit(order, 3, finished=True, manifest_sha256=64 * "5")
    control.trainer(order.token).commit(commit)
    first.leave(order, "finished")
    assert order_of(control, "second", commit.uri) == (commit.uri, 64 * "5")


def test_nobody_vouches_for_a_checkpoint_that_the_ledger_does_not_know(control: LedgerControl) -> None:
    start = "elsewhere/lineage-0/step-0000000001-epoch-1-z"
    assert order_of(control, "warm", start) == (start, None)


def test_a_job_without_a_warm_start_has_no_hash(control: LedgerControl) -> None:
    assert order_of(control, "cold", None) == (None, None)
