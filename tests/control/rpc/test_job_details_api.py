"""One job in depth by REST: its reports, what its moves cost, how fast it would be on other slots; and who may ask."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import httpx
import pytest
from fastapi import FastAPI, Header, HTTPException

from elastic_core.client import RestClient
from elastic_core.control.ledger.database import Tx
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.http_api import create_app
from elastic_core.domain import ExchangeCost, Link, to_json
from elastic_core.errors import NotFound, UserError
from elastic_core.predict.speed.exchange_forecast import Links
from elastic_core.protocol.callers import Caller, Way
from elastic_core.protocol.rest import rest_client
from tests.builders import CONTROL_SECRET, FACTS, Life, a_commit, a_spec, an_observation
from tests.control.ledger.test_profiles import store
from tests.control.serving import served

PATHS = ("observations", "moves", "curve")


def reads(authorization: str = Header(default="")) -> None:
    if authorization not in ("Bearer viewer", "Bearer ann"):
        raise HTTPException(401, "Not authenticated")


def writes(authorization: str = Header(default="")) -> Caller:
    if authorization != "Bearer ann":
        raise HTTPException(403, "Forbidden")
    return Caller(name="ann", way=Way.REST, unrestricted=True)


@pytest.fixture
def url(control: LedgerControl) -> Iterator[str]:
    app = FastAPI()
    app.mount("/elastic", create_app(control, service_secret=CONTROL_SECRET, user_reads=reads, user_writes=writes))
    with served(app) as address:
        yield address


@pytest.fixture
def viewer(url: str) -> Iterator[RestClient]:
    """Who may look and not act."""
    with RestClient(url, token="viewer", patience_seconds=0.5) as client:
        yield client


@pytest.fixture
def life(control: LedgerControl) -> Life:
    control.submit("job-a", a_spec(), FACTS)
    return Life(control, control.trainer, "job-a")


def test_reports_are_thinned_evenly_and_those_with_metrics_stay(
    viewer: RestClient, control: LedgerControl, life: Life
) -> None:
    order = life.start()
    trainer = control.trainer(order.token)
    for step in range(1, 101):
        evaluated = {"held_out_loss": 1.0 / step} if step % 10 == 5 else {}
        trainer.observe([an_observation(step, order, loss=1.0 / step, metrics=evaluated)])
    everything = viewer.reports("job-a")
    assert [report.step for report in everything] == list(range(1, 101))
    assert (everything[0].num_slots, everything[0].segment_id, everything[0].lineage) == (4, "job-a__seg_0", 0)
    some = viewer.reports("job-a", most=10)
    assert [report.step for report in some] == [5, 15, 25, 35, 45, 55, 65, 75, 85, 95]
    assert some[0].metrics == {"held_out_loss": 0.2}
    few = [report.step for report in viewer.reports("job-a", most=7)]
    assert len(few) == 7
    assert all(0 < after - before <= 30 for before, after in pairwise(few))
    for most in (0, 5001):
        with pytest.raises(UserError, match="most: Input should be"):
            viewer.reports("job-a", most=most)


def test_a_loss_that_is_no_number_and_those_before_a_rollback_are_told(
    viewer: RestClient, control: LedgerControl, life: Life
) -> None:
    order = life.start()
    control.trainer(order.token).commit(a_commit(order, 1))
    control.trainer(order.token).observe([an_observation(2, order, loss=float("nan"))])
    control.rollback("job-a", control.checkpoints("job-a")[0].checkpoint_id)
    life.leave(order)
    again = life.start(1)
    control.trainer(again.token).observe([an_observation(2, again, loss=0.5)])
    before, after = viewer.reports("job-a")
    assert before.loss != before.loss
    assert (before.lineage, after.lineage, after.loss) == (0, 1, 0.5)


def test_what_rollbacks_left_is_told_from_what_a_jobs_state_goes_back_to(control: LedgerControl, life: Life) -> None:
    order = life.start()
    control.trainer(order.token).commit(a_commit(order, 10))
    control.trainer(order.token).commit(a_commit(order, 20))
    assert control.kept_steps("job-a") == {}
    ten, twenty = (record.checkpoint_id for record in control.checkpoints("job-a"))
    control.rollback("job-a", ten)
    assert control.kept_steps("job-a") == {0: 10}
    life.leave(order)
    again = life.start(10)
    control.trainer(again.token).commit(a_commit(again, 15))
    control.rollback("job-a", control.checkpoints("job-a")[-1].checkpoint_id)
    assert control.kept_steps("job-a") == {0: 10, 1: 15}
    control.rollback("job-a", twenty)
    assert control.kept_steps("job-a") == {0: 20}


def test_bytes_of_state_are_summed_by_where_they_were(viewer: RestClient, control: LedgerControl, life: Life) -> None:
    assert viewer.moves("job-a").moved == {}
    order = life.start()
    trainer = control.trainer(order.token)
    first = {"restore_fetch": 0.5, "restore_load": 0.25, "restored_from_store_bytes": 100.0, "save": 9.0}
    trainer.commit(a_commit(order, 1, timings=first))
    trainer.commit(a_commit(order, 2, timings={"save": 9.0, "first_step": 1.0}))
    second = {"restore_fetch": 0.25, "restored_from_store_bytes": 10.0, "restored_from_own_memory_bytes": 50.0}
    trainer.commit(a_commit(order, 3, timings=second))
    moves = viewer.moves("job-a")
    assert (moves.restores, moves.restore_seconds) == (2, 1.0)
    assert moves.moved == {"store": 110, "own_memory": 50}
    assert moves.num_resizes == 0


def test_a_job_has_no_curve_before_it_was_measured_and_then_one_of_what_it_may_hold(
    viewer: RestClient, control: LedgerControl, life: Life
) -> None:
    assert viewer.scaling_curve("job-a").source == "none"
    assert viewer.scaling_curve("job-a").curves == ()
    order = life.start()
    batch = order.allocation.global_batch
    alone = {"num_slots": 1, "num_nodes": 1, "local_batch": batch, "sync_seconds": 0.0}
    store(control, order, [an_observation(step, order, step_seconds=0.4, **alone) for step in range(1, 20)])
    store(control, order, [an_observation(step, order, step_seconds=0.125) for step in range(20, 40)])
    curve = viewer.scaling_curve("job-a")
    assert (curve.source, curve.global_batch) == ("fitted", batch)
    (cpu,) = curve.curves
    assert (cpu.type, [speed.num_slots for speed in cpu.speeds]) == ("cpu", [1, 2, 3, 4])
    assert [speed.num_nodes for speed in cpu.speeds] == [1, 1, 2, 2]
    for speed in cpu.speeds:
        low, median, high = speed.samples_per_second
        assert 0 < low < median < high
    measured = {point.num_slots: point for point in curve.measured}
    assert measured[1].samples_per_second == pytest.approx(batch / 0.4)
    assert measured[4].samples_per_second == pytest.approx(batch / 0.125)
    for slots, index in ((1, 0), (4, 3)):  # the curve goes by what was measured
        assert cpu.speeds[index].samples_per_second[1] == pytest.approx(measured[slots].samples_per_second, rel=0.15)
        assert measured[slots].predicted == pytest.approx(cpu.speeds[index].samples_per_second[1])


def test_where_an_exchange_was_not_tried_the_curve_goes_by_the_one_that_decisions_count_with(
    viewer: RestClient, control: LedgerControl
) -> None:
    control.submit("job-a", a_spec(comm={"algorithm": "auto", "allow": "lossy"}), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    batch = order.allocation.global_batch
    alone = {"num_slots": 1, "num_nodes": 1, "local_batch": batch, "sync_seconds": 0.0}
    pair = {"num_slots": 2, "num_nodes": 1, "sync_seconds": 0.001, "step_seconds": 0.2}
    store(control, order, [an_observation(1, order, step_seconds=0.4, **alone), an_observation(2, order, **pair)])
    before = viewer.scaling_curve("job-a").curves[0].speeds
    sent = {"allreduce": (8e8, 8e8, 8e8), "bytegrad": (2e8, 2e8, 2e8)}  # bytes: a step sends them in 8 s, and in 2
    costs = [ExchangeCost(algorithm=name, sent_bytes=of, rounds=(0.0, 0.0, 0.0)) for name, of in sent.items()]
    told = {"costs": {a_spec().entry_point: [to_json(cost) for cost in costs]},
            "links": {"cpu": to_json(Links(between=Link(0.0, 1e-8)))}}  # fmt: skip

    def remember(tx: Tx) -> None:
        tx.scheduling().policy_state = {"exchanges": told}

    control._ledger.write(remember)
    after = viewer.scaling_curve("job-a").curves[0].speeds
    assert [speed.exchange for speed in after] == ["", "", "bytegrad", "bytegrad"]
    assert after[:2] == before[:2]
    assert all(speed.samples_per_second[1] < batch / 2.0 for speed in after[2:]), "each waits for two seconds and more"


def test_the_curve_leaves_out_numbers_of_slots_that_the_pool_has_not(
    viewer: RestClient, control: LedgerControl, life: Life
) -> None:
    order = life.start()
    control.trainer(order.token).observe([an_observation(step, order) for step in range(1, 10)])
    control.set_aside_node("node-b", "its fan")
    (cpu,) = viewer.scaling_curve("job-a").curves
    assert [speed.num_slots for speed in cpu.speeds] == [1, 2]
    assert viewer.scaling_curve("job-a").source == "prior"  # of one configuration


def test_who_is_not_logged_in_sees_none_of_it_and_an_unknown_job_is_not_found(
    url: str, viewer: RestClient, life: Life
) -> None:
    for path in PATHS:
        assert httpx.get(f"{url}/elastic/api/v1/jobs/job-a/{path}").status_code == 401
    for ask in (viewer.reports, viewer.moves, viewer.scaling_curve):
        with pytest.raises(NotFound, match="nothing here"):
            ask("nothing here")


def test_segments_and_checkpoints_come_in_pages_from_either_end(
    viewer: RestClient, control: LedgerControl, life: Life
) -> None:
    for step in range(1, 6):
        order = life.start()
        control.trainer(order.token).commit(a_commit(order, step))
        life.leave(order)
    everything = control.segments("job-a")
    page = viewer.segments("job-a", offset=1, limit=2)
    assert (page.total, page.offset, page.segments) == (len(everything), 1, tuple(everything[1:3]))
    assert viewer.segments("job-a", descending=True, limit=2).segments == tuple(everything[:-3:-1])
    assert viewer.segments("job-a", offset=99).segments == ()
    records = control.checkpoints("job-a")
    found = viewer.checkpoints("job-a", offset=1, limit=2)
    assert (found.total, found.offset, found.checkpoints) == (len(records), 1, tuple(records[1:3]))
    assert viewer.checkpoints("job-a", descending=True, limit=1).checkpoints == (records[-1],)


def test_all_segments_and_checkpoints_are_asked_for_page_by_page(
    viewer: RestClient, control: LedgerControl, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 6):
        order = life.start()
        control.trainer(order.token).commit(a_commit(order, step))
        life.leave(order)
    monkeypatch.setattr(rest_client, "MOST_LISTED", 2)
    assert list(viewer.all_segments("job-a")) == control.segments("job-a")
    assert list(viewer.all_checkpoints("job-a")) == control.checkpoints("job-a")


def test_a_page_has_bounds_and_a_job_that_there_is_not_has_none(viewer: RestClient, life: Life) -> None:
    for ask in (viewer.segments, viewer.checkpoints):
        with pytest.raises(UserError, match="limit: Input should be less than or equal to 500"):
            ask("job-a", limit=501)
        with pytest.raises(UserError, match="offset: Input should be greater"):
            ask("job-a", offset=-1)
        with pytest.raises(NotFound, match="there is no job"):
            ask("job-z")
