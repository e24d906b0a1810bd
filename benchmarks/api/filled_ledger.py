"""A ledger of many jobs that are over: one job is played over the real API, and its rows are multiplied in SQL.

All rows are of the shapes that the control plane wrote; what differs between jobs is ids, epochs and instants.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from sqlalchemy import Engine, text

from elastic_core.control.ledger.tables import Base
from elastic_core.domain import SEGMENT_MARK, Layout, Observation, segment_id_of
from elastic_core.protocol.http_client import HttpControl, HttpTrainer
from elastic_core.protocol.process_groups import ExitKind, ExitReport, LaunchOrder
from elastic_core.protocol.records import JobFacts
from elastic_core.protocol.trainer import Commit, Heartbeat
from elastic_core.spec import parse_job_spec
from elastic_core.state.stores.paths import CheckpointPath

TEMPLATE, PAST = "template", "past"
SEGMENTS, REPORTS = 3, 3  # of the template, and of each of its segments
FIRST_EPOCH = 10_000_000


def play_template(service: HttpControl, base: str) -> None:
    """A job of three segments, to its end."""
    spec = parse_job_spec(
        {"name": TEMPLATE, "entry_point": "examples.tasks.digits:Digits", "work": {"samples": 30_000},
         "batch": {"min": 64, "max": 1024}, "slots": {"min": 1, "max": 2}}
    )  # fmt: skip
    service.submit(TEMPLATE, spec, JobFacts(dataset_samples=1000))
    segment = segment_id_of(TEMPLATE, 0)
    service.acquire(segment)
    order = service.launch_order(segment)
    trainer, agent = HttpTrainer(base, order.token), order.agent_token
    for index in range(SEGMENTS):
        _train(trainer, order, index)
        last = index == SEGMENTS - 1
        answer = trainer.commit(_commit(order, 100 * (index + 1), finished=last))
        if not last:
            assert answer.order is not None, "nobody else wants its slots"
            order, trainer.token = answer.order, answer.order.token
    trainer.token = agent
    trainer.exited(ExitReport(kind=ExitKind.FINISHED))
    trainer.close()


def _train(trainer: HttpTrainer, order: LaunchOrder, index: int) -> None:
    slots, batch = order.allocation.num_slots, order.allocation.global_batch
    for report in range(1, REPORTS + 1):
        step = 100 * index + 30 * report
        trainer.heartbeat(Heartbeat(step=step, samples=100 * step, at=time.time()))
        trainer.observe([
            Observation(
                step=step, samples=100 * step, at=time.time(), epoch=step / 10, num_slots=slots,
                num_nodes=order.allocation.num_nodes, type=order.allocation.slots[0].type, global_batch=batch,
                local_batch=-(-batch // slots), accumulation=1,
                step_seconds=0.1, sync_seconds=0.01, samples_per_second=batch / 0.1, loss=1.0 / step, learning_rate=0.1,
                grad_sqr=1.0, grad_var=100.0,
            )
        ])  # fmt: skip


def _commit(order: LaunchOrder, step: int, *, finished: bool) -> Commit:
    return Commit(
        step=step, samples=100 * step, uri=CheckpointPath(order.job_id, order.lineage, step, order.epoch, "0").uri,
        manifest_sha256="0" * 64, size_bytes=1 << 20,
        layout=Layout(data=order.allocation.num_slots), metrics={"loss": 1.0 / step}, final=True, finished=finished,
        timings={"save": 0.1, "restore_fetch": 0.2},
    )  # fmt: skip


def multiply(engine: Engine, jobs: int, segments: int) -> None:
    """So many jobs of so many segments each, as the template's."""
    of_job, of_segment = f"'{PAST}-' || n", f"'{PAST}-' || n || '{SEGMENT_MARK}' || i"
    epoch = f"{FIRST_EPOCH} + n * {segments} + i"
    every = f"generate_series(0, {jobs - 1}) n, generate_series(0, {segments - 1}) i"
    # The first segments are as the template's second, the last as its last.
    source = f"s.job_id = '{TEMPLATE}' AND s.index = CASE WHEN i = {segments - 1} THEN {SEGMENTS - 1} ELSE 1 END"
    began = f"(i - {segments}) * 300.0 - n * 60.0"
    later = {name: f"t.{name} + {began}" for name in ("created_at", "asked_at", "granted_at", "started_at", "ended_at")}
    statements = [
        _copied("jobs", f"jobs t, generate_series(0, {jobs - 1}) n WHERE t.id = '{TEMPLATE}'",
                {"id": of_job, "head_id": "NULL", "submitted_at": f"t.submitted_at - n * 60.0 - {segments} * 300.0",
                 "finished_at": "t.finished_at - n * 60.0"}),
        _copied("segments", f"segments t JOIN segments s ON s.id = t.id, {every} WHERE {source}",
                {"id": of_segment, "job_id": of_job, "index": "i", "epoch": epoch, **later,
                 "follows": f"CASE WHEN i = 0 THEN NULL ELSE '{PAST}-' || n || '{SEGMENT_MARK}' || (i - 1) END"}),
        _copied("leases", f"leases t JOIN segments s ON s.epoch = t.epoch, {every} WHERE {source}",
                {"epoch": epoch, "origin_epoch": f"{FIRST_EPOCH} + n * {segments}", "job_id": of_job,
                 "segment_id": of_segment, "granted_at": f"t.granted_at + {began}",
                 "released_at": f"t.released_at + {began}"}),
        _copied("lease_slots", f"lease_slots t JOIN segments s ON s.epoch = t.epoch, {every} WHERE {source}",
                {"epoch": epoch}),
        _copied("heartbeats", f"heartbeats t JOIN segments s ON s.epoch = t.epoch, {every} WHERE {source}",
                {"epoch": epoch}),
        _copied("checkpoints", f"checkpoints t JOIN segments s ON s.epoch = t.epoch, {every} WHERE {source}",
                {"job_id": of_job, "epoch": epoch, "segment_id": of_segment, "previous_id": "NULL",
                 "step": "100 * (i + 1)", "committed_at": f"t.committed_at + {began}",
                 "uri": f"'{PAST}-' || n || '/step-' || i"}),
        _copied("observations", f"observations t JOIN segments s ON s.epoch = t.epoch, {every} WHERE {source}",
                {"job_id": of_job, "epoch": epoch, "segment_id": of_segment, "at": f"t.at + {began}"}),
        # What triggers would have added up: they are off here.
        f"INSERT INTO held_seconds SELECT l.job_id, s.node, sum(h.released_at - l.granted_at) FROM leases l "
        f"JOIN lease_slots h ON h.epoch = l.epoch JOIN slots s ON s.id = h.slot "
        f"WHERE l.job_id LIKE '{PAST}-%' GROUP BY l.job_id, s.node",
        f"UPDATE jobs SET head_id = c.id FROM checkpoints c WHERE jobs.id LIKE '{PAST}-%' AND c.job_id = jobs.id "
        f"AND c.step = {100 * segments}",
        f"UPDATE segments SET end_checkpoint_id = c.id FROM checkpoints c WHERE c.segment_id = segments.id "
        f"AND segments.job_id LIKE '{PAST}-%'",
    ]  # fmt: skip
    with engine.begin() as connection:
        # The ledger takes no commit without a live lease, and these are long over.
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        for statement in statements:
            connection.execute(text(statement))
        # Who comes now comes later: what lies before the oldest live lease is over, which metrics rely on.
        connection.execute(text("SELECT setval('lease_epoch', (SELECT max(epoch) FROM leases))"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))


def age(engine: Engine, reports: int) -> int:
    """So many reports of each job that holds slots, before those that it will make. Returns how many jobs those are."""
    others = {
        "job_id": "l.job_id", "epoch": "l.epoch", "segment_id": "l.segment_id", "step": f"n - {reports + 1}",
        "samples": "0", "num_slots": "l.num_slots", "step_seconds": "t.step_seconds * (1 + 0.1 * random())",
    }  # fmt: skip
    source = f"leases l, generate_series(1, {reports}) n, (SELECT * FROM observations LIMIT 1) t"
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text(_copied("observations", f"{source} WHERE l.released_at IS NULL", others)))
        jobs = connection.execute(text("SELECT count(*) FROM leases WHERE released_at IS NULL")).scalar_one()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE observations"))
    return int(jobs)


def _copied(table: str, source: str, instead: Mapping[str, str]) -> str:
    names = [column.name for column in Base.metadata.tables[table].columns if column.identity is None]
    listed = ", ".join(f'"{name}"' for name in names)
    values = ", ".join(instead.get(name, f't."{name}"') for name in names)
    return f"INSERT INTO {table} ({listed}) SELECT {values} FROM {source}"
