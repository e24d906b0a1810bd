"""Scripts of other libraries on the real services: submitted, resized in place, evaluated, registered."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_core.track import model_registry
from tests.e2e.platform import Platform, eventually
from tests.e2e.test_main_line import assert_read_exactly_once, finished, start, trains
from tests.e2e.test_resizes import hold, resized
from tests.train.adapters.trained import DIGITS

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("name", "library", "metric"),
    [("plain_loop", "torch", "loss"), ("hugging_face_vit", "transformers", "eval_accuracy"),
     ("lightning_digits", "lightning", "val_accuracy")],
)  # fmt: skip
def test_a_script_is_resized_while_it_lives_and_ends_as_a_registered_model(
    platform: Platform, name: str, library: str, metric: str
) -> None:
    pytest.importorskip(library, reason="needs the packages of requirements-adapters.lock")
    job_id = name.replace("_", "-")
    spec: dict[str, Any] = {
        "name": job_id, "entry_point": f"examples.{name}:train", "work": {"epochs": 60},
        "batch": {"min": 32, "max": 32}, "slots": {"min": 1, "max": 4}, "segment": {"seconds": 3600},
        "checkpoints": {"interval_seconds": None, "interval_steps": 20}, "audit": "full",
    }  # fmt: skip
    eventually(lambda: not platform.control.jobs(active_only=True), 120, "no job is left of other tests")
    start(platform, spec)
    eventually(lambda: trains(platform, job_id), 240, "the job trains")
    holder = hold(platform, job_id, 3)
    shrunk, _ = resized(platform, job_id, 1)
    platform.give_back_slots(holder)
    assert shrunk.handed_over, "in the processes that it had"
    job = finished(platform, job_id, 400)
    assert job.done_samples == 60 * DIGITS
    assert_read_exactly_once(platform, job_id, DIGITS)
    eventually(lambda: platform.run_state("elastic_job", job_id) == "success", 180, "the run of the job succeeds")
    champion = model_registry.champion(platform.control, platform.settings, job_id)
    assert champion is not None
    assert metric in champion.metrics
