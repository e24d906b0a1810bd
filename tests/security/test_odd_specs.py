"""Odd specs by the page's route: accepted, or refused in words, at once, and never a fault that somebody tries again.

Ten thousand of them go through the parser alone in tests/spec/test_bounds.py.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path

import httpx

from elastic_core.control.rpc.http_api import create_app
from elastic_core.domain import Snapshot
from tests.builders import CONTROL_SECRET, FakeClock, FakeJobRuns, a_cluster, a_control
from tests.control.serving import served
from tests.spec.test_bounds import mutated, peak_bytes

TRIES = 300
HEADERS = {"content-type": "application/json", "authorization": "Bearer a-token"}


def anybody() -> None:
    """Lets everyone in."""


def test_odd_specs_are_accepted_or_refused_by_the_route_and_nothing_else(ledger_url: str, tmp_path: Path) -> None:
    draw, answers, memory = random.Random(21), Counter[int](), peak_bytes()
    control = a_control(ledger_url, tmp_path, FakeClock(), FakeJobRuns())
    control.set_cluster(a_cluster())
    app = create_app(control, service_secret=CONTROL_SECRET, user_reads=anybody, user_writes=anybody)
    began = time.process_time()
    with served(app) as url, httpx.Client(base_url=url, headers=HEADERS, timeout=60) as client:
        for number in range(TRIES):
            answer = client.post(f"/ui/jobs/job-{number}/start", content=json.dumps({"spec": mutated(draw)}))
            answers[answer.status_code] += 1
            assert answer.status_code == 200 or answer.json()["message"], answer.text
    snapshot: Snapshot = control.snapshot()
    control.close()
    assert set(answers) == {200, 422}, answers
    assert (time.process_time() - began) / TRIES <= 0.1, "seconds of the processor each, client and server"
    assert peak_bytes() - memory <= 200e6
    assert not snapshot.jobs, "a start is asked of Airflow, which inspects the task before the job is recorded"
