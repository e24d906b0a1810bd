"""Scripts of other libraries on the real services: submitted, resized in place, evaluated, registered."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_core.track import model_registry
from tests.e2e.platform import Platform, eventually
from tests.e2e.test_main_line import assert_read_exactly_once, finished, start, trains
from tests.e2e.test_resizes import resized
from tests.required import of_adapters
from tests.train.adapters.trained import DIGITS

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("name", "library", "metric", "epochs"),
    [("plain_loop", "torch", "loss", 200), ("hugging_face_vit", "transformers", "eval_accuracy", 40),
     ("lightning_digits", "lightning", "val_accuracy", 100), ("fabric_digits", "torch", "loss", 100)],
)  # fmt: skip
def test_a_script_is_resized_while_it_lives_and_ends_as_a_registered_model(
    platform: Platform, name: str, library: str, metric: str, epochs: int
) -> None:
    of_adapters(library)
    job_id = name.replace("_", "-")
    spec: dict[str, Any] = {
        "name": job_id, "entry_point": f"examples.{name}:train", "work": {"epochs": epochs},
        "batch": {"min": 32, "max": 32}, "slots": {"min": 1, "max": 2}, "segment": {"seconds": 3600},
        "checkpoints": {"interval_seconds": None, "interval_steps": 20}, "audit": "full",
    }  # fmt: skip
    eventually(lambda: not platform.control.jobs(active_only=True), 120, "no job is left of other tests")
    start(platform, spec)
    eventually(lambda: trains(platform, job_id), 240, "the job trains")
    platform.elastic("jobs", "set", job_id, "--min-slots", "2")
    grown, _ = resized(platform, job_id, 2)
    platform.elastic("jobs", "set", job_id, "--min-slots", "1", "--max-slots", "1")
    shrunk, _ = resized(platform, job_id, 1)
    assert (grown.handed_over or grown.index == 0, shrunk.handed_over) == (True, True), "in the processes that it had"
    job = finished(platform, job_id, 900)
    assert job.done_samples == epochs * DIGITS
    assert_read_exactly_once(platform, job_id, DIGITS)
    eventually(lambda: platform.run_state("elastic_job", job_id) == "success", 180, "the run of the job succeeds")
    assert platform.control.job(job_id).results["registered_versions"]
    champion = model_registry.champion(platform.control, platform.settings, job_id)
    if metric == "loss":
        assert champion is None, "it measures nothing on held-out data"
    else:
        assert champion is not None
        assert metric in champion.metrics
