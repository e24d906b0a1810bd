"""`elastic jobs estimate`, a profile file in a spec, and what `elastic jobs show` and the page say of a placed job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from elastic_airflow.page.overview import hold_shown, job_shown
from elastic_core import cli
from elastic_core.commands.jobs import estimating, jobs_commands
from elastic_core.commands.jobs.estimating import with_profile
from elastic_core.control.job_course import JobCourse
from elastic_core.domain import Allocation, Layout, PlacedFigures, PlacedStage, Slot, Snapshot
from elastic_core.errors import UserError
from elastic_core.protocol.cluster.cluster_timeline import HeldStretch
from elastic_core.protocol.forecasts import Outlook, StepOutlook
from elastic_core.protocol.records import AuditRecord, JobFacts, JobStatus
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec, parse_job_spec
from tests.builders import FACTS, a_spec
from tests.commands.test_forecasts import a_status
from tests.policy.builders import snapshot
from tests.policy.placed import a_pool

CTR = Path(__file__).parents[3] / "examples" / "placement" / "ctr.json"
STAGES = (PlacedStage(layers=(0, 1), type="cpu", num_slots=2), PlacedStage(layers=(1, 4), type="h200", num_slots=1))
HELD = Allocation(
    slots=(Slot("cpu-0", 0, "cpu"), Slot("cpu-0", 1, "cpu"), Slot("h200-0", 0, "h200")), global_batch=100,
    layout=Layout(data=3), stages=STAGES,
)  # fmt: skip
LAYERS = [{"name": name, "on": {"cpu": {"compute_seconds": slow}, "h200": {"compute_seconds": 1.0}}}
          for name, slow in (("embedding", 1.0), ("mlp", 8.0))]  # fmt: skip


def placed_spec(**more: Any) -> JobSpec:
    profile = {"batch": 100, "layers": LAYERS}
    return a_spec(batch=(100, 100), slots=(1, 6), placement="exact", placement_profile=profile, **more)


def a_placed_status() -> JobStatus:
    figures = PlacedFigures(samples_per_second=100.0, price_per_hour=6.0, gap=0.25)
    return a_status(
        spec=placed_spec(budget=9.0), allocation=HELD, placed=figures, samples_per_second=90.0, price_per_hour=6.0,
        spent=1.5, seconds_left=1800.0, expected_cost=4.5,
    )  # fmt: skip


class Api:
    outlooks = Outlook()

    def outlook(self, spec: JobSpec, facts: JobFacts) -> Outlook:
        self.asked = spec, facts
        return self.outlooks

    def snapshot(self) -> Snapshot:
        return snapshot(a_pool((4,), (2,)))

    def job(self, job_id: str) -> JobStatus:
        return replace(a_placed_status(), job_id=job_id)

    def audit_records(self, job_ids: list[str], limit: int) -> list[AuditRecord]:
        return []


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (estimating, jobs_commands):
        monkeypatch.setattr(module, "open_api", lambda _: Api())


def elastic(*words: str) -> Any:
    return CliRunner().invoke(cli.build(), words, catch_exceptions=False)


def file_of(folder: Path, spec: JobSpec) -> str:
    path = folder / "spec.json"
    path.write_text(spec.model_dump_json(exclude_defaults=True))
    return str(path)


@pytest.mark.usefixtures("api")
def test_a_placed_job_is_estimated_for_every_bundle(tmp_path: Path) -> None:
    told = elastic("jobs", "estimate", file_of(tmp_path, placed_spec(work={"samples": 360_000}))).output
    row = next(line for line in told.splitlines() if "layer 0 on 1 cpu; layer 1 on 1 h200" in line)
    assert all(figure in row for figure in ("100", "1 h", "5"))
    assert "0.0 % above the cheapest as fast" in row
    assert "not in it: waiting for slots, starts and resizes" in told


@pytest.mark.nightly
@pytest.mark.usefixtures("api")
def test_an_ordinary_job_that_nobody_ran_has_prices_and_no_times(tmp_path: Path) -> None:
    path = file_of(tmp_path, a_spec(slots=(1, 2)))
    found = json.loads(elastic("jobs", "estimate", path, "--json").output)
    assert [one["slots"] for one in found] == [{"cpu": 1}, {"cpu": 2}, {"h200": 1}, {"h200": 2}]
    assert {one["basis"] for one in found} == {"unknown"}
    assert [one["seconds"] for one in found] == [None] * 4
    assert "nothing was measured" in elastic("jobs", "estimate", path).output


def asks(monkeypatch: pytest.MonkeyPatch, outlook: Outlook) -> None:
    """The control plane says this of a job; no code of a task is asked for its data set of 1000 samples."""
    told = type("Told", (Api,), {"outlooks": outlook})
    monkeypatch.setattr(estimating, "open_api", lambda _: told())
    monkeypatch.setattr(estimating, "_inspected", lambda _: FACTS)


def a_step(num_slots: int, seconds: tuple[float, float, float]) -> StepOutlook:
    return StepOutlook(type="cpu", num_slots=num_slots, num_nodes=1, global_batch=16, seconds=seconds)


def test_a_task_that_was_never_measured_is_told_what_jobs_of_others_say_and_that_it_is_a_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks(monkeypatch, Outlook(steps=(a_step(1, (0.5, 1.0, 2.0)),)))
    path = file_of(tmp_path, a_spec(slots=(1, 2), work={"samples": 16 * 3600}))
    one, *others = json.loads(elastic("jobs", "estimate", path, "--json").output)
    assert (one["slots"], one["basis"], one["seconds"]) == ({"cpu": 1}, "forecast from jobs of other tasks", 3600.0)
    assert one["seconds_80"] == pytest.approx([1800.0, 3600.0, 7200.0])
    assert one["samples_per_second"] == 16.0
    assert {other["basis"] for other in others} == {"unknown"}
    told = elastic("jobs", "estimate", path).output
    row = next(line for line in told.splitlines() if line.lstrip("│ ").startswith("1 cpu"))
    assert "60 min (30 min to 2 h 00 min)" in row
    assert "no job of examples.digits:Digits has measured a step there" in told


def test_work_whose_end_is_not_known_is_what_the_control_plane_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = a_step(1, (1.0, 1.0, 1.0))
    asks(monkeypatch, Outlook(work=(400.0, 800.0, 1600.0), work_source="history", work_decided=True, steps=(step,)))
    path = file_of(tmp_path, a_spec(work={"samples": 16_000, "target_loss": 0.1}))
    one = json.loads(elastic("jobs", "estimate", path, "--json").output)[0]
    assert one["seconds"] == 50.0
    assert one["seconds_80"] == pytest.approx([25.0, 50.0, 100.0])
    told = elastic("jobs", "estimate", path).output
    assert "a forecast (history): where the job ends. Time and money are for 800 samples of work" in told
    assert "80 % of jobs like it take 400 to 1600, and it may take 16000" in told
    asks(monkeypatch, Outlook(work=(400.0, 800.0, 1600.0), work_source="history", steps=(step,)))
    raw = elastic("jobs", "estimate", path).output
    assert "a forecast (history, by which the policy in force does not decide): where the job ends" in raw
    asks(monkeypatch, Outlook())
    assert "not known: where the job ends; time and money are for all of its 16000 samples" in elastic(
        "jobs", "estimate", path
    ).output  # fmt: skip


def test_progress_says_how_many_passes_it_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asks(monkeypatch, Outlook())
    path = file_of(tmp_path, a_spec(batch=(16, 32), work={"samples": 4_000, "measure": "progress"}))
    told = elastic("jobs", "estimate", path).output
    assert "4000 samples of work are at most 8032 samples read, 8.03 passes over the data set; 4 where" in told
    path = file_of(tmp_path, a_spec(work={"epochs": 4, "measure": "progress", "max_samples": 6_000}))
    assert "at most 6000 samples read, 6 passes" in elastic("jobs", "estimate", path).output


@pytest.mark.usefixtures("api")
def test_what_can_never_be_placed_is_said_before_it_is_submitted(tmp_path: Path) -> None:
    path = file_of(tmp_path, placed_spec(placement_floor=1e9))
    with pytest.raises(UserError, match="the highest that can be reached"):
        elastic("jobs", "estimate", path)


def test_a_profile_file_becomes_the_layers_of_a_job_without_its_prices() -> None:
    plain = a_spec(batch=(4096, 4096)).model_dump(mode="json", exclude_defaults=True)
    spec = parse_job_spec(with_profile(plain, CTR))
    assert (spec.placement, spec.placement_floor) == ("auto", 20_000)
    assert spec.placement_profile is not None
    assert [layer.name for layer in spec.placement_profile.layers] == ["embeddings", "interaction", "mlp", "head"]
    assert [kind.name for kind in spec.placement_profile.types] == ["cpu", "t4", "h200"]
    assert spec.placement_profile.types[0].shards_weights


@pytest.mark.usefixtures("api")
def test_jobs_show_says_plan_prediction_measurement_and_money() -> None:
    told = elastic("jobs", "show", "job-a").output
    assert "stages     layer 0 on 2 cpu; layers 1 to 3 on 1 h200" in told
    assert "placement  exact: 100 samples/s predicted, 90 measured (-10 %); 16.7 a million samples predicted, " in told
    assert "18.5 measured; 25.0 % dearer than the cheapest placement as fast" in told
    assert "spent      1.50 of 9.00; 4.50 expected in all, at 6 an hour" in told


def test_the_page_shows_the_plan_and_what_each_slot_does() -> None:
    shown = job_shown(a_placed_status(), JobCourse(None, 0), Settings(), 0.0)
    assert shown.types == "2 cpu, 1 h200"
    assert shown.stages == "layer 0 on 2 cpu; layers 1 to 3 on 1 h200"
    assert shown.placement.startswith("100 samples/s predicted, 90 measured")
    assert shown.cost.startswith("1.50 of 9.00; 4.50 expected")
    held = hold_shown(a_stretch())
    assert held.stages == ("layer 0 on 2 cpu", "layer 0 on 2 cpu", "layers 1 to 3 on 1 h200")


def a_stretch() -> HeldStretch:
    return HeldStretch(
        segment_id="job-a__seg_0", job_id="job-a", attempt=0, allocation=HELD, since=0.0, until=None, grant_reason=None,
        end_reason=None,
    )  # fmt: skip
