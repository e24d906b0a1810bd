"""Signing secrets are rotated by the documented command while a job trains: the job is not lost, reads every sample
once, and what was signed before is refused in the end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.errors import Unauthorized
from elastic_core.protocol.http_client import HttpControl
from elastic_core.services.secrets import SIGNING, read_secret
from tests.e2e.platform import Platform, eventually, running
from tests.e2e.test_main_line import a_job, assert_read_exactly_once, finished, start, trains

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]
JOB = "rotated"


@pytest.fixture(scope="module")
def rotated() -> Iterator[Platform]:
    """Services of its own: what others have signed would be refused."""
    with running(Platform(Path(tempfile.mkdtemp(prefix="elastic-rotate-")))) as platform:
        yield platform


def is_taken(platform: Platform, secret: str) -> bool:
    """Whether a request that is signed with it is answered."""
    control = HttpControl(platform.settings.api_url(), secret.encode(), patience_seconds=120.0)
    try:
        return control.job(JOB).job_id == JOB
    except Unauthorized:
        return False
    finally:
        control.close()


def start_anew(platform: Platform) -> None:
    """As the command says: Airflow's services sign with the secret before until then."""
    platform.down()
    platform.up()
    platform.__dict__.pop("control", None)  # it holds the secret of before


def goes_on(platform: Platform, step: int) -> None:
    def is_further() -> bool:
        segment = trains(platform, JOB)
        return segment is not None and platform.control.job(JOB).step > step

    eventually(is_further, 240, f"the job is past step {step}")


def test_a_job_that_trains_outlives_two_rotations_of_the_secrets(rotated: Platform) -> None:
    platform = rotated
    secrets = [read_secret(platform.settings, "control")]
    start(platform, a_job(JOB, samples=40_000, slots=(2, 2), checkpoints={"interval_steps": 50}))
    before = eventually(lambda: trains(platform, JOB), 240, "the job trains")

    said = platform.elastic("rotate-secrets").stdout
    assert "new: control, trainer; those before count for 24 h more" in said
    secrets.append(read_secret(platform.settings, "control"))
    goes_on(platform, platform.control.job(JOB).step)
    now = platform.control.segment(before.segment_id)
    assert (now.epoch, now.attempt) == (before.epoch, before.attempt), "the very processes that were there go on"
    assert [is_taken(platform, secret) for secret in secrets] == [True, True]

    start_anew(platform)
    goes_on(platform, platform.control.job(JOB).step)

    assert "those before count no more" in platform.elastic("rotate-secrets", "--at-once").stdout
    secrets.append(read_secret(platform.settings, "control"))
    assert [is_taken(platform, secret) for secret in secrets] == [False, False, True]
    start_anew(platform)
    job = finished(platform, JOB, 600)
    assert [is_taken(platform, secret) for secret in secrets] == [False, False, True]
    assert len(set(secrets)) == 3
    assert job.done_samples == 40_000
    assert_read_exactly_once(platform, JOB)
    recorded = [one for one in platform.control.audit_records() if one.action == "rotate secrets"]
    assert [one.detail.partition(";")[0] for one in recorded] == [", ".join(SIGNING)] * 2
