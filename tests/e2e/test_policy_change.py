"""The policy is changed while jobs run, there and back: they go on, nothing is lost, and who decides is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from elastic_core.services.secrets import read_secret
from tests.e2e.platform import Platform, eventually
from tests.e2e.test_main_line import a_job, assert_read_exactly_once, finished, start, trains
from tests.e2e.test_user_actions import page

JOBS = ("steady", "changing")


@pytest.fixture
def elastic_batch(platform: Platform) -> Iterator[Any]:
    """What `elastic policy set` says of it; the configured policy decides again after the test."""
    yield json.loads(platform.elastic("policy", "set", "elastic_batch", "--json").stdout)
    platform.elastic("policy", "reset")


def rows(platform: Platform, query: str) -> list[tuple[Any, ...]]:
    engine = create_engine(read_secret(platform.settings, "ledger_url"))
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()
    return found


def decided_by(platform: Platform, policy: str) -> bool:
    explained = {platform.control.explain(job_id).policy for job_id in JOBS}
    return explained == {policy} and page(platform)["decision"]["policy"] == policy


def test_jobs_go_on_under_another_policy_and_back(platform: Platform, elastic_batch: Any) -> None:
    assert (elastic_batch["policy"], elastic_batch["set_by_operator"]) == ("elastic_batch", True)
    first_event = rows(platform, "SELECT coalesce(max(id), 0) FROM events")[0][0]
    first_decision = rows(platform, "SELECT coalesce(max(id), 0) FROM decisions")[0][0]
    for job_id in JOBS:
        start(platform, a_job(job_id, samples=12_000))
    for job_id in JOBS:
        eventually(lambda job_id=job_id: trains(platform, job_id), 120, f"{job_id} trains")
    for policy in ("horizon", "elastic_batch"):
        before = {job_id: platform.control.job(job_id) for job_id in JOBS}
        assert platform.control.set_policy(policy).policy == policy
        eventually(lambda policy=policy: decided_by(platform, policy), 30, f"{policy} decides, and is said to")
        for job_id, job in before.items():
            eventually(lambda i=job_id, j=job: platform.control.job(i).step > j.step, 60, f"{job_id} trains on")
            assert platform.control.job(job_id).lineage == 0
    for job_id in JOBS:
        assert finished(platform, job_id).done_samples == 12_000
        assert_read_exactly_once(platform, job_id)
        assert {segment.attempt for segment in platform.control.segments(job_id)} == {0}, "no attempt was lost"
    decisions = rows(
        platform, f"SELECT policy, wanted, failure, snapshot FROM decisions WHERE id > {first_decision} ORDER BY id"
    )
    assert {(policy == wanted, failure) for policy, wanted, failure, _ in decisions} == {(True, None)}
    first_of_horizon = next(snapshot for policy, _, _, snapshot in decisions if policy == "horizon")
    assert first_of_horizon["policy_state"] == {}, "what another policy remembered is not handed to it"
    changed = rows(platform, f"SELECT payload FROM events WHERE kind = 'policy_changed' AND id > {first_event}")
    assert [payload for (payload,) in changed] == [
        {"policy": "horizon", "before": "elastic_batch"}, {"policy": "elastic_batch", "before": "horizon"},
    ]  # fmt: skip
