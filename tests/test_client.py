"""`elastic_core.client`, the way from a script: connects by the settings, waits for the task's own word."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import FastAPI

from elastic_core import client
from elastic_core.control.rpc.http_api import create_app
from elastic_core.errors import InfrastructureError
from elastic_core.protocol.records import SubmissionState
from elastic_core.settings import Settings
from tests.builders import CONTROL_SECRET, FACTS, FakeClock, FakeJobRuns, a_cluster, a_control, a_spec
from tests.control.serving import served


def test_a_script_submits_a_job_and_asks_for_more_by_the_same_connection(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = FakeJobRuns()
    plane = a_control(ledger_url, tmp_path, FakeClock(), runs)
    plane.set_cluster(a_cluster())
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "control").write_bytes(CONTROL_SECRET)
    app = FastAPI()
    app.mount(
        "/elastic",
        create_app(plane, service_secret=CONTROL_SECRET, user_reads=lambda: None, user_writes=lambda: None),
    )
    with served(app) as url:
        monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
        monkeypatch.setenv("ELASTIC_CONTROL_URL", f"{url}/elastic")
        submission = client.submit(a_spec().model_dump(mode="json"), wait_seconds=0)
        assert (submission.state, list(runs.runs)) == (SubmissionState.STARTING, [submission.job_id])
        assert submission.job_id.startswith("digits-")
        plane.submit(submission.job_id, a_spec(), FACTS)
        control = client.connect()
        again = client.submit(a_spec(), job_id=submission.job_id, control=control)
        assert again.state is SubmissionState.ACCEPTED
        assert control.job(submission.job_id).spec == a_spec()
        control.close()
    plane.close()


def test_without_a_platform_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="secrets/control cannot be read"):
        client.connect(Settings(home=tmp_path))
