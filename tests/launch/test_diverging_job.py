"""Real jobs that diverge under an exchange that is not exact: they go on from their last commit by the exact sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic_core.domain import JobState
from elastic_core.protocol.records import JobStatus
from elastic_core.spec import JobSpec
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.data.audit import prove
from elastic_core.train.entry import job_facts
from tests.launch.airflowless import ApiThread, Platform, platform
from tests.train import tasks

pytestmark = pytest.mark.e2e


def submit(running: Platform, job_id: str, entry: str, comm: dict[str, Any], samples: int = 960) -> None:
    """Batches of 8 over 96 samples on two slots, saved every 5 steps."""
    spec = JobSpec.model_validate(
        {
            "name": job_id, "entry_point": f"tests.train.tasks:{entry}", "params": {"learning_rate": 0.01},
            "work": {"samples": samples}, "batch": {"min": 8, "max": 8}, "slots": {"min": 2, "max": 2},
            "segment": {"seconds": 3600, "steps": 40}, "audit": "full",
            "checkpoints": {"interval_seconds": None, "interval_steps": 5}, "comm": comm,
        }
    )  # fmt: skip
    running.control.submit(job_id, spec, job_facts(getattr(tasks, entry), spec))


def fell_back(running: Platform, job_id: str, algorithm: str) -> JobStatus:
    """The finished job, which did once: from a commit, counting no failure, with every later lease for the sum."""
    job = running.wait(job_id)
    assert job.state is JobState.FINISHED, job.error
    assert job.exchange_fallback is not None
    assert job.exchange_fallback.algorithm == algorithm
    assert any(job.exchange_fallback.reason in note for note in job.notes)
    assert isinstance(running.api, ApiThread)
    events = [event for event in running.api.events() if event.job_id == job_id]
    kinds = [str(event.kind) for event in events]
    at = kinds.index("exchange_fell_back")
    assert kinds.count("exchange_fell_back") == 1
    for which, stretch in ((algorithm, events[:at]), ("allreduce", events[at:])):
        granted = [event.payload["allocation"]["comm"] for event in stretch if event.kind == "segment_granted"]
        assert set(granted) == {which}
    committed = [event.payload["checkpoint"]["step"] for event in events[:at] if event.kind == "committed"]
    assert job.exchange_fallback.step == max(committed, default=0)
    verdicts = prove(running.control.reads(job_id), 96, open_store(running.settings.store_url()))
    assert [verdict.problem for verdict in verdicts] == [""] * (job.done_samples // 96)
    return job


@pytest.mark.nightly
def test_gradients_that_overflow_in_half_precision_cost_the_steps_since_the_last_commit(
    home: Path, ledger_url: str
) -> None:
    with platform(home, ledger_url, num_slots=2) as running:
        submit(running, "exact", "Growing", {})
        assert running.wait("exact").state is JobState.FINISHED
        submit(running, "halves", "Growing", {"algorithm": "fp16"})
        job = fell_back(running, "halves", "fp16")
        assert job.exchange_fallback is not None
        assert job.exchange_fallback.step > 0
        assert running.control.job("exact").exchange_fallback is None
        losses = {name: running.control.checkpoints(name)[-1].metrics["held_out"] for name in ("exact", "halves")}
        assert losses["halves"] == pytest.approx(losses["exact"], rel=0.5)


def test_a_job_that_does_not_learn_as_an_exact_one_did_falls_back_to_it(home: Path, ledger_url: str) -> None:
    with platform(home, ledger_url, num_slots=2) as running:
        submit(running, "exact", "Loud", {}, samples=1920)
        assert running.wait("exact").state is JobState.FINISHED
        submit(running, "bytes", "Loud", {"algorithm": "bytegrad"}, samples=1920)
        job = fell_back(running, "bytes", "bytegrad")
        assert job.exchange_fallback is not None
        assert "forecast from exact, under the exact sum" in job.exchange_fallback.reason
