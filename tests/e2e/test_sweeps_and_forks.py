"""On the real services: a sweep, a fork of one of its members, and what the operator's notifier is told of both."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.domain import JobState
from tests.e2e.platform import Platform, eventually, project_with_dags, running

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
SPEC = """
name: tried
entry_point: examples.digits:Digits
params: {width: 8}
work: {epochs: 1}
batch: {min: 64, max: 64}
slots: {min: 1, max: 2}
segment: {seconds: 600}
"""
NOTIFIER = '''import json
from pathlib import Path

from airflow.sdk import BaseNotifier

TOLD = Path(__file__).parent / "told.jsonl"


class InAFile(BaseNotifier):
    """Writes down what it is told."""

    template_fields = ()

    def notify(self, context):
        news = context["elastic"]
        with TOLD.open("a") as file:
            file.write(json.dumps([news.event, news.job_id, news.links["Page"]]) + "\\n")
'''


@pytest.fixture(scope="module")
def told_of() -> Iterator[Platform]:
    """The services, with a notifier of the operator's beside the DAG files."""
    home = Path(tempfile.mkdtemp(prefix="elastic-sweep-"))
    (home / "own").mkdir()
    project = project_with_dags(home / "project", home / "own")
    (project / "my_notifiers.py").write_text(NOTIFIER)
    (home / "spec.yaml").write_text(SPEC)
    with running(Platform(home, project=project, notifiers="my_notifiers:InAFile")) as platform:
        yield platform


def told(platform: Platform) -> list[list[str]]:
    file = platform.settings.project / "my_notifiers.py"
    lines = file.with_name("told.jsonl")
    return [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []


def ended(platform: Platform, job_id: str) -> bool:
    return platform.control.job(job_id).state is not JobState.ACTIVE


def test_a_sweep_is_compared_and_its_best_member_goes_on_as_a_fork(told_of: Platform) -> None:
    platform, spec = told_of, told_of.home / "spec.yaml"
    platform.elastic("jobs", "submit", str(spec), "--sweep", "params.width=4,16", "--id", "night", "--wait", "300")
    members = ("night-000", "night-001")
    eventually(lambda: all(ended(platform, one) for one in members), 300, "both members are trained")
    eventually(
        lambda: all("evaluation" in platform.control.job(one).results for one in members), 120, "both are evaluated"
    )
    listed = json.loads(platform.elastic("jobs", "list", "--group", "night", "--json").stdout)
    assert sorted(one["values"]["params.width"] for one in listed) == [4, 16]
    assert [one["value"] for one in listed] == sorted((one["value"] for one in listed), reverse=True)

    best = listed[0]["job"]["job_id"]
    last = platform.control.checkpoints(best)[-1]
    forked = ("checkpoint", "fork", str(last.checkpoint_id), "--id", "further", "--set", "work.epochs=3")
    assert f"forked from checkpoint {last.checkpoint_id} of job {best}" in platform.elastic(*forked).stdout
    eventually(lambda: ended(platform, "further"), 240, "the fork is trained")
    fork, parent = platform.control.job("further"), platform.control.job(best)
    assert (fork.state, fork.done_samples) == (JobState.FINISHED, 3 * parent.done_samples)
    audit = platform.elastic("jobs", "audit", "further").stdout
    assert f"from checkpoint {last.checkpoint_id} of job {best}" in audit
    assert "NO" not in audit

    everyone = {*members, "further"}
    eventually(lambda: {job for _, job, _ in told(platform)} == everyone, 180, "the notifier is told of each end")
    assert {event for event, _, _ in told(platform)} == {"finished"}
    assert all(page.endswith(f"/plugin/elastic-job?job={job}") for _, job, page in told(platform))
