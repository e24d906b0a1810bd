"""From whose checkpoints a new job may start: every way of submission asks, and what it asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.errors import Forbidden, UserError
from elastic_core.protocol.callers import Caller, Way
from elastic_core.spec import QueueSpec
from elastic_core.spec.inputs.sweeps import parse_sweep
from tests.builders import FACTS, FakeJobRuns, Life, a_cluster, a_commit, a_spec

ANN, BEN, EVE = (Caller(name=name, way=Way.REST) for name in ("ann", "ben", "eve"))
OPERATOR = Caller(name="op@host", way=Way.CLI, unrestricted=True)
UNKNOWN = "gone/lineage-0/step-0000000001-epoch-1-z"


@pytest.fixture
def point(control: LedgerControl) -> str:
    """Address of a checkpoint of ann's job `hers` in the queue of a team of two."""
    control.set_cluster(a_cluster().model_copy(update={"queues": (QueueSpec(name="team", members=("ann", "ben")),)}))
    control.acting(ANN).submit("hers", a_spec(queue="team"), FACTS)
    order = Life(control, control.trainer, "hers").start()
    commit = a_commit(order, 3)
    control.trainer(order.token).commit(commit)
    return commit.uri


WAYS: dict[str, Callable[[LedgerControl, str], object]] = {
    "run": lambda control, uri: control.start_job("new", a_spec(), uri),
    "check": lambda control, uri: control.check_submission("new", a_spec(), uri),
    "record": lambda control, uri: control.submit("new", a_spec(), FACTS, uri),
    "sweep": lambda control, uri: control.start_sweep("new", parse_sweep(a_spec(), {"seed": [1, 2]}), uri),
}


@pytest.mark.parametrize("way", WAYS)
def test_who_may_not_act_on_the_job_that_made_a_checkpoint_does_not_start_from_it(
    control: LedgerControl, runs: FakeJobRuns, point: str, way: str
) -> None:
    for caller, why in ((EVE, "the queue is of ann, ben"), (BEN, "'ann' submitted it")):
        with pytest.raises(Forbidden, match=f"'{caller.name}' may not start a job from checkpoint .*'team': {why}"):
            WAYS[way](control.acting(caller), point)
        assert [record.done for record in control.audit_records(actor=caller.name)] == [False]
    assert (runs.runs, [job.job_id for job in control.jobs()]) == ({}, ["hers"])
    WAYS[way](control.acting(ANN), point)
    WAYS[way](control, point)  # the platform carries out what was asked for


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "uri", ["hers", "hers/lineage-0", "code/0123.zip", "", "a/../b", f"x/{UNKNOWN}", f"../{UNKNOWN}", "a\0b"]
)
def test_what_is_no_address_of_a_checkpoint_is_refused_to_everybody(
    control: LedgerControl, point: str, way: str, uri: str
) -> None:
    for caller in (ANN, OPERATOR, None):
        with pytest.raises(UserError, match=r"warm_start is .*it takes the address of a checkpoint"):
            WAYS[way](control.acting(caller), uri)


def test_who_starts_from_a_checkpoint_is_on_record_with_the_job_that_made_it(
    control: LedgerControl, point: str
) -> None:
    for job_id in ("one", "two", "two"):
        control.acting(ANN).submit(job_id, a_spec(), FACTS, point)
    records = [r for r in control.audit_records(["hers"]) if r.action == "start a job from"]
    assert [(r.actor, r.subject, r.detail, r.done) for r in records] == [
        ("ann", f"checkpoint {point!r}", "job two", True), ("ann", f"checkpoint {point!r}", "job one", True)
    ]  # fmt: skip


def test_a_registered_version_is_its_queues_so_that_a_teams_pipeline_goes_on_from_the_champion(
    control: LedgerControl, point: str
) -> None:
    control.record_results("hers", {"registered_checkpoints": [point]})
    control.acting(BEN).submit("bens", a_spec(queue="team"), FACTS, point)
    with pytest.raises(Forbidden, match="the queue is of ann, ben"):
        control.acting(EVE).submit("eves", a_spec(), FACTS, point)


def test_what_no_job_of_the_ledger_made_is_vouched_for_by_the_operator_alone(
    control: LedgerControl, point: str
) -> None:
    with pytest.raises(Forbidden, match="which no job of the ledger made: that is for the operator"):
        control.acting(ANN).submit("new", a_spec(), FACTS, UNKNOWN)
    assert control.acting(OPERATOR).submit("new", a_spec(), FACTS, UNKNOWN).job_id == "new"
