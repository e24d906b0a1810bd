"""Which runs the ledger hands out to be learnt from."""

from __future__ import annotations

from dataclasses import replace

from elastic_core.control.ledger import finished
from elastic_core.control.plane import LedgerControl
from tests.builders import FACTS, a_cluster, a_commit, a_spec
from tests.control.scheduling.predicting.test_predictors import UNTIL, into_ledger, report, runs, submit
from tests.predict.forecasts.builders import a_run


def test_jobs_that_have_not_trained_take_no_place_of_runs_that_can_be_learnt_from(
    control: LedgerControl, ledger_url: str
) -> None:
    into_ledger(ledger_url, runs()[:5])
    for number in range(8):
        control.submit(f"waiting-{number}", a_spec(), FACTS)
    control.submit("never-began", a_spec(), FACTS)
    control.cancel("never-began", "enough")
    assert [run.job_id for run in control.finished_runs(5)] == [run.job_id for run in runs()[:5]]


def test_jobs_that_still_run_take_a_part_of_the_places_where_enough_have_ended(
    control: LedgerControl, ledger_url: str
) -> None:
    control.set_cluster(a_cluster({"node-a": 8}))
    for number in range(4):
        report(control, submit(control, f"running-{number}", slots=(1, 1)), [(100, 0.5)])
    into_ledger(ledger_url, runs()[:4])
    assert finished.MOST_ACTIVE == 0.25
    few, many = control.finished_runs(4), control.finished_runs(7)
    assert [run.job_id for run in few] == ["past-001", "past-002", "past-003", "running-3"]
    assert [run.job_id for run in many] == [f"past-{n:03d}" for n in range(4)] + [f"running-{n}" for n in (1, 2, 3)]
    assert [run.completed for run in many] == [True] * 4 + [False] * 3


def test_a_run_that_has_committed_and_reported_no_loss_has_trained(control: LedgerControl) -> None:
    order = submit(control, "committed").start()
    control.trainer(order.token).commit(a_commit(order, 2))
    assert [run.job_id for run in control.finished_runs(5)] == ["committed"]


def test_the_last_of_unknown_end_and_the_last_of_declared_work_are_handed_out_apart(
    control: LedgerControl, ledger_url: str
) -> None:
    """Own jobs and imported ones, over and active alike."""
    control.set_cluster(a_cluster({"node-a": 8}))
    until = {"target": UNTIL, "patient": {"epochs": 9, "patience": 3}, "declared": {"samples": 5000}}
    for name, work in until.items():
        report(control, submit(control, name, slots=(1, 1), work=work), [(100, 0.5)])
    control.cancel("target", "enough")
    of_other = a_run(1)
    control.import_runs(
        [of_other, replace(of_other, job_id="known", description=replace(of_other.description, target_loss=None))]
    )
    into_ledger(ledger_url, runs()[:2])

    def of(unknown: bool, limit: int = 9) -> list[str]:
        return [run.job_id for run in control.finished_runs(limit, of_unknown_end=unknown)]

    assert of(True) == ["run-001", "target", "patient"]
    assert of(False) == ["known", "past-000", "past-001", "declared"]
    assert sorted(run.job_id for run in control.finished_runs(9)) == sorted([*of(True), *of(False)])
    assert (of(True, limit=1), of(False, limit=1)) == (["target"], ["past-001"])
