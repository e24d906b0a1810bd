"""What-if and replay over REST: whoever may look may ask, one at a time, within bounds; and what the client gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Header, HTTPException

from elastic_core.client import RestClient
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc import whatif
from elastic_core.control.rpc.http_api import create_app
from elastic_core.errors import NotFound
from elastic_core.protocol.rest import rest_client
from elastic_core.protocol.rest.what_if import COURSE_SECONDS, AddedNodes, WhatIf
from elastic_core.spec.job_changes import JobChanges
from tests.builders import CONTROL_SECRET, FACTS, a_spec
from tests.control.serving import served

READER = {"authorization": "Bearer reader", "content-type": "application/json"}


@pytest.fixture
def address(control: LedgerControl) -> Iterator[str]:
    """Who reads may not write."""

    def reads(authorization: str = Header(default="")) -> None:
        if authorization != "Bearer reader":
            raise HTTPException(401)

    def writes() -> None:
        raise HTTPException(403)

    app = FastAPI()
    app.mount(
        "/elastic", create_app(control, service_secret=CONTROL_SECRET, user_reads=reads, user_writes=writes)
    )  # fmt: skip
    for job_id in ("job-a", "job-b"):
        control.submit(job_id, a_spec(slots=(4, 4)), FACTS)
        control.acquire(f"{job_id}__seg_0")
    with served(app) as url:
        yield url


def ask(address: str, body: Any, headers: dict[str, str] = READER) -> httpx.Response:
    return httpx.post(f"{address}/elastic/api/v1/what-if", json=body, headers=headers, timeout=240)


def test_of_a_body_that_is_wrong_in_many_places_the_first_are_told(address: str) -> None:
    answer = ask(address, {f"field-{number}": 0 for number in range(5_000)})
    assert answer.status_code == 422
    assert "the body of the request is wrong: field-0: Extra inputs are not permitted, seen 0; " in answer.text
    assert "; and 4995 more" in answer.text
    assert len(answer.content) < 1000


def test_who_may_look_may_ask_and_a_stranger_may_not(address: str, control: LedgerControl) -> None:
    before = control.snapshot()
    assert ask(address, {}, {"content-type": "application/json"}).status_code == 401
    answer = ask(address, {"add": [{"type": "cpu", "num_slots": 4}]})
    assert answer.status_code == 200, answer.text
    a, b = answer.json()["jobs"]
    assert a["as_it_is"]["ends_at"] < b["as_it_is"]["ends_at"]
    assert b["changed"]["ends_at"] < b["as_it_is"]["ends_at"]
    assert control.snapshot() == before


def test_it_is_refused_to_a_page_of_another_site(address: str) -> None:
    assert ask(address, {}, {**READER, "origin": "https://elsewhere.example"}).status_code == 403


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"nodes": 3}, "nodes: Extra inputs are not permitted"),
        ({"add": [{"type": "cpu", "num_slots": 0}]}, "add.0.num_slots"),
        ({"add": [{"type": "cpu", "num_slots": 10**9}]}, "add.0.num_slots"),
        ({"without": ["x"] * 501}, "without"),
        ({"policy": "fixd"}, "Did you mean 'fixed'?"),
        ({"jobs": {"job-a": {"min_slots": 9, "max_slots": 3}}}, "slots"),
        ([], "body"),
    ],
)
def test_a_wrong_question_is_refused_with_words(address: str, body: Any, problem: str) -> None:
    answer = ask(address, body)
    assert answer.status_code == 422
    assert problem in answer.json()["message"]


def test_one_question_at_a_time(address: str) -> None:
    with whatif.one_at_a_time():
        busy = ask(address, {})
    assert (busy.status_code, busy.json()["message"]) == (
        429, "another what-if or replay is being answered; ask again in a moment",
    )  # fmt: skip
    assert ask(address, {}).status_code == 200


def test_the_client_asks_and_is_answered_in_records(address: str) -> None:
    asked = WhatIf(
        policy="fixed", add=(AddedNodes(type="cpu", num_slots=2, count=2),), without=("node-a",),
        jobs={"job-b": JobChanges(priority=5)},
    )  # fmt: skip
    with RestClient(address, token="reader") as client:
        answer = client.what_if(asked)
    assert (answer.policy, answer.changed_policy, answer.complete) == ("fair_share", "fixed", True)
    a, b = answer.jobs
    assert a.as_it_is.starts_at == answer.at
    assert b.changed.starts_at == answer.at
    assert a.changed.ends_at is not None
    assert any("never measured" in note for note in answer.notes)


def test_an_answer_comes_in_pages_and_is_simulated_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with RestClient(address, token="reader") as client:
        first = client.what_if(WhatIf(policy="fixed"), limit=1)
        assert (first.total, first.offset, [job.job_id for job in first.jobs]) == (2, 0, ["job-a"])
        assert first.means is not None
        assert first.means.jobs == 2, "of all, on whichever page"
        monkeypatch.setattr(whatif, "COMMAND", ("false",))
        second = client.what_if_page(first.answer_id, offset=1, limit=1)
        assert (second.at, second.means, second.offset) == (first.at, first.means, 1)
        assert [job.job_id for job in second.jobs] == ["job-b"]
        assert client.what_if_page(first.answer_id, offset=2).jobs == ()
        with pytest.raises(NotFound, match=r"'0' is not kept here: .* for 15 minutes.* Ask the question again"):
            client.what_if_page("0")


def test_every_job_can_be_asked_for_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_client, "MOST_AHEAD", 1)
    with RestClient(address, token="reader") as client:
        assert [job.job_id for job in client.all_ahead(WhatIf())] == ["job-a", "job-b"]


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "offset=-1"])
def test_a_page_that_cannot_be_is_refused(address: str, query: str) -> None:
    url = f"{address}/elastic/api/v1/what-if?{query}"
    assert httpx.post(url, json={}, headers=READER).status_code == 422


def test_how_long_it_takes_is_said_before_and_learnt_from_the_last(address: str) -> None:
    with RestClient(address, token="reader") as client:
        before = client.what_if_expected()
        assert (before.jobs, before.most_seconds) == (2, COURSE_SECONDS)
        answer = client.what_if(WhatIf())
        assert len(answer.course_seconds) == 1, "nothing is changed, so one course is both"
        after = client.what_if_expected()
    assert after.course_seconds == pytest.approx(answer.course_seconds[0])
    assert 0 < after.start_seconds != before.start_seconds
    assert httpx.get(f"{address}/elastic/api/v1/what-if/expected").status_code == 401


def test_a_decision_is_made_again_from_its_inputs(address: str, control: LedgerControl) -> None:
    with RestClient(address, token="reader") as client:
        newest = client.decisions(limit=1)[0]
        again = client.replay(newest.decision_id)
        recorded = client.decision(newest.decision_id)
        assert (again.decision_id, again.same, again.again) == (newest.decision_id, True, recorded.plan)
        with pytest.raises(NotFound, match="there is no decision 999999"):
            client.replay(999_999)
    assert httpx.get(f"{address}/elastic/api/v1/decisions/{newest.decision_id}/replay").status_code == 401
