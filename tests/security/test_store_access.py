"""A real job whose checkpoints lie in S3: its processes hold no credential of the store, and reach their part of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.domain import JobState
from elastic_core.host.messages import AccessBrokerProcess
from elastic_core.host.process import ProcessId, marked
from elastic_core.host.rundir import RUN_DIR, RunDir
from elastic_core.state.format.checkpoint_format import verify
from elastic_core.state.store_access import access_brokers
from elastic_core.state.stores.store_urls import open_store
from tests.launch.airflowless import Platform, platform
from tests.launch.test_local import memory_of
from tests.state.conftest import ACCESS_KEY, BUCKET, SECRET_KEY, Server, credentials, rclone  # noqa: F401 - fixtures

pytestmark = pytest.mark.e2e

STORE = f"s3://{BUCKET}/jobs"


@pytest.fixture
def running(home: Path, ledger_url: str, rclone: Server, tmp_path: Path) -> Iterator[Platform]:  # noqa: F811
    variables = tmp_path / "job.env"
    variables.write_text("AWS_ACCESS_KEY_ID=of-the-data\n")
    with platform(home, ledger_url, num_slots=1, store=STORE, s3_endpoint=rclone.endpoint, job_env=variables) as found:
        yield found
    access_brokers.stop(found.settings)


def processes_of(running: Platform, job_id: str) -> set[int]:
    """The agent, the workers and whatever they have started."""
    order = running.control.launch_order(running.running(job_id).segment_id)
    path = RunDir.of(running.home, order.origin_epoch).path
    return {process.pid for process in marked(RUN_DIR, str(path))} | {running.agent_pid(job_id)}


def test_a_job_trains_resizes_and_resumes_without_a_credential_of_the_store(
    running: Platform,
    rclone: Server,  # noqa: F811
) -> None:
    store = open_store(STORE, endpoint=rclone.endpoint)
    store.put("other/canary", b"canary")
    probing = {"entry_point": "tests.security.store_probe:probing", "params": {"other": "other", "sleep": 0.1}}
    running.submit("job", slots=(1, 2), samples=2400, checkpoints={"interval_steps": 10}, **probing)
    running.until_step("job", 15)
    pids, workers = processes_of(running, "job"), running.worker_pids("job")
    assert set(workers) <= pids
    broker = RunDir(access_brokers.folder_of(running.settings)).require(AccessBrokerProcess)
    for pid in (*pids, broker.pid):
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        assert SECRET_KEY.encode() not in environ
        assert ACCESS_KEY.encode() not in environ
    for pid in workers:
        process = ProcessId.of(pid)
        assert process is not None
        assert SECRET_KEY.encode() not in memory_of(process)
    running.pool(2)
    running.until(lambda: running.running("job").allocation.num_slots, lambda count: count == 2)
    running.until(lambda: (running.home / "job" / "probe-rank1").exists(), bool)
    os.kill(running.worker_pids("job")[0], 9)  # so that the next attempt resumes from the store
    assert running.wait("job", 180).state is JobState.FINISHED
    for rank in (0, 1):
        found = json.loads((running.home / "job" / f"probe-rank{rank}").read_text())
        assert found["environment"] == {"AWS_ACCESS_KEY_ID": "of-the-data"}
        assert found["own"] is True
        refused = [found[name] for name in ("read", "written", "listed", "deleted")]
        assert all("may not" in text and f"in {STORE} it may write job/" in text for text in refused), found
    assert store.get("other/canary") == b"canary"
    records = running.control.checkpoints("job")
    assert len(records) > 1
    verify(store, records[0].uri, records[0].manifest_sha256)
    segments = running.control.segments("job")
    assert any(segment.allocation.num_slots == 2 for segment in segments if segment.allocation)
    assert any(segment.attempt for segment in segments)
