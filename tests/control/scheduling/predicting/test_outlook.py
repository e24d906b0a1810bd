"""What is forecast of a job before it is submitted: its work, and its steps on slots that its task never had."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.control.scheduling.predicting import refit
from elastic_core.protocol.forecasts import DECLARED, Outlook
from tests.builders import FACTS, FakeClock, Life, a_cluster, a_commit, a_control, a_spec
from tests.control.conftest import Plane
from tests.predict.forecasts.builders import MOST, TARGET, history

UNTIL = {"samples": MOST, "target_loss": TARGET}
OTHER_TASK = "examples.tabular:Tabular"


@pytest.fixture
def taught(control: LedgerControl, monkeypatch: pytest.MonkeyPatch) -> LedgerControl:
    """By sixty runs of another task, a tenth of a second a step."""
    monkeypatch.setattr(refit, "FORECAST_KINDS", ("quantile forest",))
    said = refit.refit_forecasts(history(60), {}, control.settings.forecasts_file())
    assert "step times: " in said
    return control


def test_a_task_that_never_ran_has_a_forecast_of_its_work_and_of_a_step_on_each_choice_of_slots(
    taught: LedgerControl,
) -> None:
    quick, slow = (
        taught.outlook(a_spec(entry_point=OTHER_TASK, work=UNTIL, params={"learning_rate": rate}), FACTS)
        for rate in (0.4, 0.1)
    )
    assert quick.work is not None
    assert slow.work is not None
    assert quick.work_source == "submission"
    assert 0 < quick.work[0] <= quick.work[1] <= quick.work[2] <= MOST
    assert quick.work[1] < 0.7 * slow.work[1]
    places = [(step.type, step.num_slots, step.num_nodes, step.global_batch) for step in quick.steps]
    assert places == [("cpu", 1, 1, 16), ("cpu", 2, 1, 16), ("cpu", 3, 2, 16), ("cpu", 4, 2, 16)]  # two nodes of two
    assert all(step.seconds[1] == pytest.approx(0.1, rel=0.05) for step in quick.steps)
    assert all(step.seconds[0] <= step.seconds[1] <= step.seconds[2] for step in quick.steps)
    assert taught.jobs() == []


def test_slots_that_nothing_was_learnt_of_have_no_forecast(taught: LedgerControl) -> None:
    whole = taught.outlook(a_spec(slots=(3, 9), batch=(2, 256)), FACTS)
    assert [(step.num_slots, step.global_batch) for step in whole.steps] == [(3, 3), (4, 4)]  # a sample a slot
    inexact = taught.outlook(a_spec(comm={"algorithm": "bytegrad"}), FACTS)
    assert [step.num_slots for step in inexact.steps] == [1]
    cut = taught.outlook(a_spec(layouts={"tensor": [1, 2]}), FACTS)
    assert cut.steps == ()
    taught.set_cluster(a_cluster({"node-a": 2}, type="h200"))
    assert [step.type for step in taught.outlook(a_spec(), FACTS).steps] == ["h200"] * 2


def test_declared_work_is_believed_and_of_unknown_work_the_prior_is_told(plane: Plane) -> None:
    assert plane.service.outlook(a_spec(), FACTS) == Outlook(work=None, work_source=DECLARED, steps=())
    open_end = plane.service.outlook(a_spec(work=UNTIL), FACTS)
    assert open_end.work_source == "prior"
    assert open_end.work is not None
    assert open_end.work[0] < open_end.work[1] < open_end.work[2] == MOST


@pytest.mark.parametrize("policy", ["fair_share", "horizon"])
def test_a_cap_on_samples_bounds_the_work_that_is_told(control: LedgerControl, policy: str) -> None:
    """Whether the policy weighs the work or the raw forecast is told."""
    control.set_policy(policy)
    capped = {"samples": 10_000, "measure": "progress", "max_samples": 4_000, "target_loss": 0.1}
    told = control.outlook(a_spec(work=capped), FACTS)
    assert told.work is not None
    assert told.work[2] <= 4_000


def test_with_predictors_off_nothing_is_told(ledger_url: str, tmp_path: Path, clock: FakeClock) -> None:
    control = a_control(ledger_url, tmp_path, clock, use_predictors=False)
    assert control.outlook(a_spec(work=UNTIL), FACTS) == Outlook()
    control.close()


def test_the_work_that_is_told_is_what_the_policy_in_force_would_decide_by(control: LedgerControl) -> None:
    """Three jobs of its task took 10,000 samples each; of what the policy does not weigh the raw forecast is told."""
    control.set_policy("horizon")
    for name in ("old-a", "old-b", "old-c"):
        control.submit(name, a_spec(batch=(10, 10)), FACTS)
        life = Life(control, control.trainer, name)
        order = life.start()
        control.trainer(order.token).commit(a_commit(order, 1000, finished=True))
        life.leave(order, "finished")
    until = a_spec(batch=(10, 10), work={"samples": 1_000_000, "target_loss": 0.1})
    told = control.outlook(until, FACTS)
    assert (told.work_source, told.work_decided) == ("history of its task", True)
    assert told.work is not None
    assert told.work[1] == pytest.approx(10_000, rel=0.2)
    control.submit("job-a", until, FACTS)
    control.acquire("job-a__seg_0")
    assert control.forecasts("job-a")[0].work_left[1] == pytest.approx(told.work[1], rel=0.01), "once it is submitted"
    control.set_policy("fair_share")
    raw = control.outlook(until, FACTS)
    assert (raw.work_source, raw.work_decided) == ("prior", False)
    assert raw.work is not None
    assert raw.work[1] > 2 * told.work[1]
