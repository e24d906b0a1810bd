"""Every part of the runtime killed with -9 in the middle of a segment: the job goes on by itself and loses nothing.

Without Airflow, so that what is shown is the runtime's own doing: a real PostgreSQL, the control API in a process
of its own, agents, workers. Reconciliation runs every two seconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic_core.control.ledger.migrations import upgrade
from elastic_core.domain import JobState
from elastic_core.protocol.records import CheckpointRecord
from elastic_core.services.platform import settings_environment
from elastic_core.services.postgres import EmbeddedPostgres, database_urls
from elastic_core.services.secrets import ensure_secrets, read_secret
from elastic_core.settings import Settings
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.data.audit import prove
from tests.effort import sample
from tests.launch.airflowless import PROJECT, ROWS, Platform, settings_for

SAMPLES, STEPS = 640, 80
RECOVERY_SECONDS = 120.0

SERVE = """
import sys, uvicorn
from elastic_core.control.rpc.http_api import create_app
from elastic_core.control.plane import open_control
from elastic_core.settings import Settings
settings = Settings()
nobody = lambda: sys.exit("nobody logs in here")
secret = settings.secret_file("control").read_text().strip().encode()
app = create_app(open_control(settings), service_secret=secret, user_reads=nobody, user_writes=nobody)
uvicorn.run(app, port=int(settings.control_url.rpartition(":")[2]), log_level="warning")
"""


class Postgres:
    """The embedded server as a process of this test."""

    def __init__(self, settings: Settings) -> None:
        self._server = EmbeddedPostgres(settings)
        self._process: subprocess.Popen[bytes] | None = None
        ensure_secrets(settings)
        self._server.initialise()
        self.up()
        self._server.ensure_databases()
        database_urls(settings, self._server)
        upgrade(self._server.url("ledger"))

    def up(self) -> None:
        program = self._server.program()
        self._process = subprocess.Popen(
            program.command, user=program.user, group=program.user, extra_groups=[] if program.user else None,
            cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for(lambda: self._server.problem() is None)

    def down(self, signum: int = signal.SIGINT) -> None:
        assert self._process is not None
        self._process.send_signal(signum)
        self._process.wait()


class ApiProcess:
    """The control API in a process of its own. `up` returns when its port is open."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        import httpx

        environ = {name: value for name, value in os.environ.items() if not name.startswith("ELASTIC_")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE], env=environ | settings_environment(self._settings), cwd=PROJECT
        )

        def answers() -> bool:
            try:
                return httpx.post(f"{self._settings.control_url}/service/jobs").status_code == 401
            except httpx.TransportError:
                return False

        wait_for(answers)

    def down(self, signum: int = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(signum)
        self._process.wait()


class Stage(Platform):
    """The platform, and ways to hurt it."""

    def __init__(self, settings: Settings) -> None:
        self.postgres = Postgres(settings)
        self.api_process = ApiProcess(settings)
        super().__init__(settings, self.api_process, read_secret(settings, "control").encode(), reconcile_seconds=2.0)

    def train(self, job_id: str, hurt: Callable[[Stage, str], None] | None = None) -> None:
        """Train a job of two ranks to its end; hurt it in the middle of its second segment."""
        self.submit(job_id, slots=(2, 2), samples=SAMPLES, segment={"steps": 30}, checkpoints={"interval_steps": 8})
        if hurt is not None:
            self.until_step(job_id, 42)
            began = time.monotonic()
            hurt(self, job_id)
            self.until_step(job_id, STEPS, RECOVERY_SECONDS)
            print(f"{hurt.__name__}: at its last step {time.monotonic() - began:.1f} s later")
        self.wait(job_id, RECOVERY_SECONDS)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    home = Path(tempfile.mkdtemp(prefix="elastic-faults-"))
    stage = Stage(settings_for(home, policy=Settings.model_fields["policy"].default))
    try:
        with stage:
            stage.pool(2)
            stage.train("calm")
            yield stage
    finally:
        stage.postgres.down()
        shutil.rmtree(home)


def worker_of_rank_0(stage: Stage, job_id: str) -> None:
    os.kill(stage.worker_pids(job_id)[0], signal.SIGKILL)


def worker_of_rank_1(stage: Stage, job_id: str) -> None:
    os.kill(stage.worker_pids(job_id)[1], signal.SIGKILL)


def agent(stage: Stage, job_id: str) -> None:
    os.kill(stage.agent_pid(job_id), signal.SIGKILL)


def control_api(stage: Stage, job_id: str) -> None:
    stage.api_process.down(signal.SIGKILL)
    time.sleep(2)
    stage.api_process.up()


def postgresql(stage: Stage, job_id: str) -> None:
    stage.postgres.down(signal.SIGKILL)
    time.sleep(2)
    stage.postgres.up()


def everything_at_once(stage: Stage, job_id: str) -> None:
    pid = stage.agent_pid(job_id)
    stage.postgres.down(signal.SIGKILL)
    stage.api_process.down(signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    stage.postgres.up()
    stage.api_process.up()


def flipped_byte(stage: Stage, job_id: str) -> None:
    path = largest_file(stage, newest(stage, job_id))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    worker_of_rank_0(stage, job_id)


def missing_file(stage: Stage, job_id: str) -> None:
    largest_file(stage, newest(stage, job_id)).unlink()
    worker_of_rank_1(stage, job_id)


def newest(stage: Stage, job_id: str) -> CheckpointRecord:
    """The newest checkpoint, with its workers held so that none comes after it, but for a commit on its way."""
    for pid in stage.worker_pids(job_id):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1)
    return max(stage.control.checkpoints(job_id), key=lambda record: record.step)


def largest_file(stage: Stage, record: CheckpointRecord) -> Path:
    files = Path(stage.settings.store_url(), record.uri).glob("*.safetensors")
    return max(files, key=lambda path: path.stat().st_size)


HARMLESS = [control_api, postgresql]
FATAL = [worker_of_rank_0, worker_of_rank_1, agent, everything_at_once, flipped_byte, missing_file]
OF_EACH_KIND = (postgresql, worker_of_rank_0, everything_at_once, flipped_byte)


@pytest.mark.parametrize("hurt", sample(HARMLESS + FATAL, *OF_EACH_KIND), ids=lambda hurt: hurt.__name__)
def test_a_job_survives_the_loss_of(stage: Stage, hurt: Callable[[Stage, str], None]) -> None:
    job_id = hurt.__name__.replace("_", "-")
    stage.train(job_id, hurt)
    job, segments = stage.control.job(job_id), stage.control.segments(job_id)
    assert (job.state, job.step, job.done_samples) == (JobState.FINISHED, STEPS, SAMPLES)
    assert stage.curve(job_id) == stage.curve("calm")  # every loss, bit for bit
    assert stage.curve(job_id, rank=1) == stage.curve("calm")
    assert sum(segment.attempt for segment in segments) == (hurt in FATAL)
    assert exactly_once(stage, job_id)
    if hurt in (flipped_byte, missing_file):
        assert any("epoch" in note for note in job.notes), job.notes
        assert any(record.bad for record in stage.control.checkpoints(job_id))
    stage.until(stage.launcher.groups, lambda groups: not any(group.alive for group in groups))
    assert not stage.held_twice


def exactly_once(stage: Stage, job_id: str) -> bool:
    verdicts = prove(stage.control.reads(job_id), ROWS, open_store(stage.settings.store_url()))
    complete = verdicts[: SAMPLES // ROWS]
    return not any(v.problem for v in verdicts) and all(v.proven and v.every_index for v in complete)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.05)
