"""Invariants 1 to 3 hold in the database itself: raw SQL past all of our code is refused."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from elastic_core.control.plane import LedgerControl
from elastic_core.errors import Conflict
from elastic_core.protocol.process_groups import LaunchOrder
from tests.builders import FACTS, Life, a_commit, a_spec

ADD_CHECKPOINT = text("""
    INSERT INTO checkpoints (job_id, lineage, step, samples, epoch, segment_id, uri, manifest_sha256, size_bytes,
                             layout, metrics, fingerprints, timings, committed_at, final, bad)
    VALUES (:job, :lineage, :step, :samples, :epoch, :segment, :uri, '', 1, '{}', '{}', '{}', '{}', 0, :final, false)
""")
ADD_OBSERVATION = text("""
    INSERT INTO observations (job_id, segment_id, epoch, lineage, step, samples, at, passes, num_slots, num_nodes, type,
                              global_batch, local_batch, accumulation, step_seconds, sync_seconds, samples_per_second,
                              loss, learning_rate, memory_bytes, metrics)
    VALUES (:job, :segment, :epoch, 0, 1, 1, 0, 0, 1, 1, 'cpu', 1, 1, 1, 1, 1, 1, 1, 1, 1, '{}')
""")
ADD_LEASE = text("""
    INSERT INTO leases (epoch, origin_epoch, job_id, segment_id, attempt, allocation, num_slots, granted_at, expires_at)
    VALUES (:epoch, :epoch, :job, :segment, 0, '{}', 1, 0, 0)
""")


@pytest.fixture
def engine(ledger_url: str) -> Iterator[Engine]:
    made = create_engine(ledger_url)
    yield made
    made.dispose()


@pytest.fixture
def order(control: LedgerControl) -> LaunchOrder:
    control.submit("job-a", a_spec(), FACTS)
    return Life(control, control.trainer, "job-a").start()


def checkpoint(order: LaunchOrder, step: int, **more: Any) -> dict[str, Any]:
    return {
        "job": order.job_id,
        "segment": order.segment_id,
        "epoch": order.epoch,
        "lineage": order.lineage,
        "step": step,
        "samples": step * 10,
        "uri": f"job-a/raw-{step}-{sorted(more.items())}",
        "final": False,
        **more,
    }


def pg_code(error: DBAPIError) -> str:
    code: str = error.orig.pgcode  # type: ignore[union-attr]
    return code


class TestNoDoubleSpend:
    def test_a_held_slot_cannot_be_leased_again(
        self, control: LedgerControl, engine: Engine, order: LaunchOrder
    ) -> None:
        control.submit("job-b", a_spec(), FACTS)
        with engine.begin() as sql:
            sql.execute(ADD_LEASE, {"epoch": 900, "job": "job-b", "segment": "job-b__seg_0"})
        with engine.begin() as sql, pytest.raises(IntegrityError, match="uq_lease_slots_held"):
            sql.execute(text("INSERT INTO lease_slots (epoch, slot) VALUES (900, 'node-a:0')"))

    def test_an_expired_and_fenced_lease_still_holds_its_slots(
        self, control: LedgerControl, engine: Engine, order: LaunchOrder
    ) -> None:
        control.submit("job-b", a_spec(), FACTS)
        with engine.begin() as sql:
            sql.execute(text("UPDATE leases SET expires_at = 0, fenced_at = 1"))
            sql.execute(ADD_LEASE, {"epoch": 900, "job": "job-b", "segment": "job-b__seg_0"})
        with engine.begin() as sql, pytest.raises(IntegrityError, match="uq_lease_slots_held"):
            sql.execute(text("INSERT INTO lease_slots (epoch, slot) VALUES (900, 'node-a:0')"))

    def test_a_slot_says_that_it_is_held_whoever_writes_of_it(self, engine: Engine, order: LaunchOrder) -> None:
        def held() -> set[str]:
            with engine.connect() as sql:
                return set(sql.scalars(text("SELECT id FROM slots WHERE held")))

        slots = {f"{slot.node}:{slot.index}" for slot in order.allocation.slots}
        assert held() == slots
        with engine.begin() as sql:
            sql.execute(text("UPDATE lease_slots SET released_at = 1"))
        assert held() == set()
        with engine.begin() as sql:
            sql.execute(text("UPDATE lease_slots SET released_at = NULL WHERE slot = 'node-a:0'"))
        assert held() == {"node-a:0"}
        with engine.begin() as sql:
            sql.execute(text("DELETE FROM lease_slots"))
        assert held() == set()
        with engine.begin() as sql:
            sql.execute(
                text("INSERT INTO lease_slots (epoch, slot) VALUES (:epoch, 'node-a:1')"), {"epoch": order.epoch}
            )
            sql.execute(
                text("INSERT INTO lease_slots (epoch, slot, released_at) VALUES (:epoch, 'node-a:0', 1)"),
                {"epoch": order.epoch},
            )
        assert held() == {"node-a:1"}

    def test_seconds_held_are_summed_up_whoever_writes_of_them(self, engine: Engine, order: LaunchOrder) -> None:
        def held() -> dict[str, float]:
            with engine.connect() as sql:
                return dict(sql.execute(text("SELECT node, seconds FROM held_seconds WHERE seconds <> 0")).all())

        assert held() == {}
        at = {"granted_at": order.epoch * 10.0, "epoch": order.epoch}
        with engine.begin() as sql:
            sql.execute(text("UPDATE leases SET granted_at = :granted_at"), at)
            sql.execute(text("UPDATE lease_slots SET released_at = :granted_at + 5"), at)
        per_node = Counter(slot.node for slot in order.allocation.slots)
        assert held() == {node: 5.0 * count for node, count in per_node.items()}
        with engine.begin() as sql:
            sql.execute(text("UPDATE lease_slots SET released_at = :granted_at + 7"), at)
        assert held() == {node: 7.0 * count for node, count in per_node.items()}
        with engine.begin() as sql:
            sql.execute(text("UPDATE lease_slots SET released_at = NULL"))
        assert held() == {}
        with engine.begin() as sql:
            sql.execute(text("DELETE FROM lease_slots"))
            sql.execute(
                text("INSERT INTO lease_slots (epoch, slot, released_at) VALUES (:epoch, 'node-a:1', :granted_at + 2)"),
                at,
            )
        assert held() == {"node-a": 2.0}
        with engine.begin() as sql:
            sql.execute(text("DELETE FROM lease_slots"))
        assert held() == {}

    def test_a_segment_has_one_live_lease(self, engine: Engine, order: LaunchOrder) -> None:
        with engine.begin() as sql, pytest.raises(IntegrityError, match="uq_leases_live_segment"):
            sql.execute(ADD_LEASE, {"epoch": 900, "job": order.job_id, "segment": order.segment_id})

    def test_a_job_has_one_open_segment(self, engine: Engine, order: LaunchOrder) -> None:
        copy = text("""
            INSERT INTO segments
                (id, job_id, index, lineage, state, attempt, failures, start_step, created_at, handed_over)
            VALUES ('job-a__seg_9', 'job-a', 9, 0, 'created', 0, 0, 0, 0, false)
        """)
        with engine.begin() as sql, pytest.raises(IntegrityError, match="uq_segments_open"):
            sql.execute(copy)


class TestSingleWriter:
    @pytest.mark.parametrize("over", ["released_at = 1", "fenced_at = 1"])
    def test_an_epoch_that_is_over_adds_nothing(self, engine: Engine, order: LaunchOrder, over: str) -> None:
        with engine.begin() as sql:
            sql.execute(text(f"UPDATE leases SET {over}"))
        for statement, values in ((ADD_CHECKPOINT, checkpoint(order, 1)), (ADD_OBSERVATION, checkpoint(order, 1))):
            with engine.begin() as sql, pytest.raises(DBAPIError, match="stale epoch") as caught:
                sql.execute(statement, values)
            assert pg_code(caught.value) == "EL002"

    def test_the_epoch_of_another_segment_adds_nothing(
        self, control: LedgerControl, engine: Engine, order: LaunchOrder
    ) -> None:
        control.submit("job-b", a_spec(), FACTS)
        foreign = checkpoint(order, 1, job="job-b", segment="job-b__seg_0")
        with engine.begin() as sql, pytest.raises(DBAPIError, match="stale epoch"):
            sql.execute(ADD_CHECKPOINT, foreign)

    def test_an_epoch_that_was_never_granted_adds_nothing(self, engine: Engine, order: LaunchOrder) -> None:
        with engine.begin() as sql, pytest.raises(DBAPIError, match="stale epoch"):
            sql.execute(ADD_CHECKPOINT, checkpoint(order, 1, epoch=777))

    def test_a_fence_waits_for_the_write_that_is_under_way(self, engine: Engine, order: LaunchOrder) -> None:
        fenced = threading.Event()

        def fence() -> None:
            with engine.begin() as sql:
                sql.execute(text("UPDATE leases SET fenced_at = 1"))
            fenced.set()

        with engine.begin() as sql:
            sql.execute(ADD_CHECKPOINT, checkpoint(order, 1))
            thread = threading.Thread(target=fence)
            thread.start()
            assert not fenced.wait(0.2)
        thread.join(5)
        assert fenced.is_set()


class TestMonotoneProgress:
    @pytest.mark.parametrize(
        ("step", "samples", "final"),
        [(4, 60, False), (5, 50, False), (5, 60, True), (6, 50, False), (6, 40, True), (4, 40, True)],
    )
    def test_neither_step_nor_samples_go_back(
        self, engine: Engine, order: LaunchOrder, step: int, samples: int, final: bool
    ) -> None:
        with engine.begin() as sql:
            sql.execute(ADD_CHECKPOINT, checkpoint(order, 5))
        with engine.begin() as sql, pytest.raises(DBAPIError, match="regress") as caught:
            sql.execute(ADD_CHECKPOINT, checkpoint(order, step, samples=samples, final=final))
        assert pg_code(caught.value) == "EL003"

    def test_a_segment_without_a_step_may_end_where_it_started(self, engine: Engine, order: LaunchOrder) -> None:
        with engine.begin() as sql:
            sql.execute(ADD_CHECKPOINT, checkpoint(order, 5))
            sql.execute(ADD_CHECKPOINT, checkpoint(order, 5, final=True))

    def test_work_lost_to_a_corrupt_checkpoint_may_be_done_again(self, engine: Engine, order: LaunchOrder) -> None:
        with engine.begin() as sql:
            sql.execute(ADD_CHECKPOINT, checkpoint(order, 5))
            sql.execute(text("UPDATE checkpoints SET bad = true"))
            sql.execute(ADD_CHECKPOINT, checkpoint(order, 3))

    def test_work_beyond_the_last_that_can_be_read_may_be_done_again(self, engine: Engine, order: LaunchOrder) -> None:
        """The best one is kept; later ones were swept, and the last one is corrupt."""
        with engine.begin() as sql:
            for step in (4, 5, 9):
                sql.execute(ADD_CHECKPOINT, checkpoint(order, step))
            sql.execute(text("UPDATE checkpoints SET swept_at = 1 WHERE step = 5"))
            sql.execute(text("UPDATE checkpoints SET bad = true WHERE step = 9"))
        with engine.begin() as sql, pytest.raises(DBAPIError, match=r"regress: step 3 .* after step 4"):
            sql.execute(ADD_CHECKPOINT, checkpoint(order, 3))
        with engine.begin() as sql:
            sql.execute(ADD_CHECKPOINT, checkpoint(order, 5, uri="job-a/another"))

    def test_a_new_lineage_starts_where_it_was_opened(self, control: LedgerControl, order: LaunchOrder) -> None:
        trainer = control.trainer(order.token)
        trainer.commit(a_commit(order, 5))
        trainer.commit(a_commit(order, 9))
        control.rollback("job-a", control.checkpoints("job-a")[0].checkpoint_id)
        Life(control, control.trainer, "job-a").leave(order, "stopped")
        again = Life(control, control.trainer, "job-a").start()
        with pytest.raises(Conflict, match="regress: step 4"):
            control.trainer(again.token).commit(a_commit(again, 4))

    def test_two_writers_cannot_pass_side_by_side(self, engine: Engine, order: LaunchOrder) -> None:
        outcomes: list[str] = []

        def write(step: int, ready: threading.Barrier) -> None:
            with engine.connect() as sql:
                ready.wait()
                outcomes.append(_try(sql, checkpoint(order, step)))

        ready = threading.Barrier(8)
        threads = [threading.Thread(target=write, args=(7, ready)) for _ in range(7)]
        threads.append(threading.Thread(target=write, args=(6, ready)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        with engine.connect() as sql:
            steps = list(sql.execute(text("SELECT step FROM checkpoints ORDER BY id")).scalars())
        assert steps in ([7], [6, 7])

    def test_what_is_committed_is_not_rewritten(self, engine: Engine, order: LaunchOrder) -> None:
        with engine.begin() as sql:
            sql.execute(ADD_CHECKPOINT, checkpoint(order, 5))
        for change in ("step = 3", "uri = 'elsewhere'", "manifest_sha256 = 'other'"):
            with engine.begin() as sql, pytest.raises(DBAPIError, match="cannot be rewritten"):
                sql.execute(text(f"UPDATE checkpoints SET {change}"))


def _try(sql: Connection, values: dict[str, Any]) -> str:
    try:
        with sql.begin():
            sql.execute(ADD_CHECKPOINT, values)
    except DBAPIError as error:
        return pg_code(error)
    return "written"
