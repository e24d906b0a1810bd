"""What one job can do to the API server with its token: it takes its own share, whatever and however much it sends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import create_engine, text

from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc import contract_calls
from elastic_core.control.rpc.http_api import create_app
from elastic_core.control.rpc.trainer_api import LARGE_BYTES, MOST_BEATS, MOST_CALLS, ONE_LARGE
from elastic_core.protocol import calls
from elastic_core.protocol.encoding import dumps
from elastic_core.protocol.process_groups import ExitKind, ExitReport, LaunchOrder
from elastic_core.protocol.tokens import TOKEN_SECONDS, ServiceSigner
from tests.builders import CONTROL_SECRET, FACTS, FakeClock, Life, a_beat, a_commit, a_spec, an_observation
from tests.control.serving import anybody, served

MIB = 2**20


@pytest.fixture
def url(control: LedgerControl) -> Iterator[str]:
    app = create_app(control, service_secret=CONTROL_SECRET, user_reads=anybody, user_writes=anybody)
    with served(app) as address:
        yield address


@pytest.fixture
def orders(control: LedgerControl) -> dict[str, LaunchOrder]:
    """Of two jobs that train on two slots each."""
    made = {}
    for job_id in ("job-a", "job-b"):
        control.submit(job_id, a_spec(slots=(2, 2)), FACTS)
        made[job_id] = Life(control, control.trainer, job_id).start()
    return made


def headers(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def body_of(name: str, **arguments: object) -> bytes:
    return calls.trainer_methods()[name].encode_arguments(arguments)


WRONG = {
    "a list of the largest body": ("observe", b'{"observations":[' + b"0," * (4 * MIB - 100) + b"0]}",
                                   "has 4194206 values; allowed are 200000"),
    "a list of many": ("observe", b'{"observations":[' + b"{}," * 50_000 + b"{}]}",
                       "observations has 50001 entries; allowed are 1000: send fewer"),
    "a list of as many as are allowed": ("observe", b'{"observations":[' + b"{}," * 999 + b"{}]}",
                                         "and 14995 more"),
    "an object of many": ("commit", dumps({"commit": {"metrics": {str(n): "x" for n in range(150_000)}}}).encode(),
                          "values are wrong, too many to name any"),
    "objects in an object": ("observe", b'{"observations":[{"stages":[' + b"{}," * 90_000 + b"{}]}]}",
                             "values are wrong, too many to name any"),
    "long texts": ("commit", dumps({"commit": dict.fromkeys(("step", "samples", "size_bytes"), "x" * MIB)}).encode(),
                   f"seen '{40 * 'x'}'; samples: Input should be a valid integer"),
    "names of no argument": ("commit", dumps({str(n): 0 for n in range(100_000)}).encode(),
                             "takes a JSON object with ['commit'], of which ['commit'] are needed"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "body", "says"), WRONG.values(), ids=WRONG)
def test_what_is_said_of_a_wrong_message_is_short_however_large_it_is(
    url: str, orders: dict[str, LaunchOrder], name: str, body: bytes, says: str
) -> None:
    answer = httpx.post(f"{url}/trainer/{name}", content=body, headers=headers(orders["job-a"].token), timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (422, "user_error")
    assert says in answer.json()["message"]
    assert len(answer.content) < 1000


def test_the_first_wrong_values_are_told_with_what_was_seen_and_what_is_allowed(
    url: str, orders: dict[str, LaunchOrder]
) -> None:
    body = b'{"beat": {"step": "far", "samples": [1, 2], "at": 1.0, "pids": ["a", "b", "c", "d"]}}'
    answer = httpx.post(f"{url}/trainer/heartbeat", content=body, headers=headers(orders["job-a"].token))
    assert answer.json()["message"] == (
        "'heartbeat' was called with wrong values: "
        "step: Input should be a valid integer, unable to parse string as an integer, seen 'far'; "
        "samples: Input should be a valid integer, seen list; "
        + "".join(
            f"pids.{n}: Input should be a valid integer, unable to parse string as an integer, seen {text!r}; "
            for n, text in enumerate("abc")
        )
        + "and 1 more"
    )


def expired(control: LedgerControl, clock: FakeClock, order: LaunchOrder) -> str:
    clock.advance(TOKEN_SECONDS + 1)
    return order.token


def an_agents(control: LedgerControl, clock: FakeClock, order: LaunchOrder) -> str:
    return order.agent_token


def nobodys(control: LedgerControl, clock: FakeClock, order: LaunchOrder) -> str:
    return "e30.e30.e30"


@pytest.mark.parametrize("token", [expired, an_agents, nobodys])
@pytest.mark.parametrize("name", ["observe", "commit", "heartbeat"])
def test_of_who_may_not_ask_now_no_body_is_read(
    url: str, control: LedgerControl, clock: FakeClock, orders: dict[str, LaunchOrder], name: str,
    token: Callable[[LedgerControl, FakeClock, LaunchOrder], str],
) -> None:  # fmt: skip
    connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.putrequest("POST", f"/trainer/{name}")
    connection.putheader("authorization", f"Bearer {token(control, clock, orders['job-a'])}")
    connection.putheader("content-length", "100000")
    connection.endheaders()
    assert connection.getresponse().status == 401  # of a body that never comes
    connection.close()


def test_a_body_that_stays_away_gives_back_its_share_of_the_job(
    url: str, orders: dict[str, LaunchOrder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract_calls, "BODY_SECONDS", 0.2)
    order, body = orders["job-a"], body_of("observe", observations=[])
    for _ in range(MOST_CALLS + 1):
        connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
        connection.putrequest("POST", "/trainer/observe")
        connection.putheader("authorization", f"Bearer {order.token}")
        connection.putheader("content-length", str(len(body)))
        connection.endheaders()
        connection.send(body[:5])
        answer = connection.getresponse()
        assert answer.status == 503
        assert b"of the body 5 bytes came in 0.2 s; allowed is all in that time: send it again" in answer.read()
        connection.close()
    assert httpx.post(f"{url}/trainer/observe", content=body, headers=headers(order.token)).status_code == 200


@contextmanager
def nobody_can_change(url: str, job_id: str) -> Iterator[None]:
    """Whatever changes the job, or its lease, waits until this ends, each with a connection to the ledger."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("SELECT 1 FROM jobs WHERE id = :job FOR UPDATE"), {"job": job_id})
        connection.execute(text("SELECT 1 FROM leases WHERE job_id = :job FOR UPDATE"), {"job": job_id})
        yield
    engine.dispose()


def test_a_job_that_asks_too_much_at_once_is_told_so_and_heartbeats_of_others_do_not_wait_for_it(
    url: str, pool_url: str, orders: dict[str, LaunchOrder]
) -> None:
    mine, others = orders["job-a"], orders["job-b"]
    commit, beat = body_of("commit", commit=a_commit(mine, 5)), body_of("heartbeat", beat=a_beat(5))
    limits = httpx.Limits(max_connections=100)
    with httpx.Client(base_url=url, timeout=120, limits=limits) as client, ThreadPoolExecutor(90) as threads:

        def ask(name: str, body: bytes) -> httpx.Response:
            return client.post(f"/trainer/{name}", content=body, headers=headers(mine.token))

        with nobody_can_change(pool_url, "job-a"):
            asked = [threads.submit(ask, "commit", commit) for _ in range(50)]
            asked += [threads.submit(ask, "heartbeat", beat) for _ in range(30)]
            refused = first(asked, 80 - MOST_CALLS - MOST_BEATS)
            for _ in range(3):
                theirs = client.post("/trainer/heartbeat", content=beat, headers=headers(others.token))
                assert theirs.status_code == 200
            assert {answer.status_code for answer in refused} == {429}
            told = {answer.json()["message"] for answer in refused}
            assert told == {
                f"{most} {what} of job 'job-a' are under way, which is the most for one job at once; ask again in a "
                "moment"
                for most, what in ((MOST_CALLS, "requests"), (MOST_BEATS, "heartbeats"))
            }
            assert {answer.json()["code"] for answer in refused} == {"infrastructure"}, "the client asks again"
        answers = [one.result() for one in asked]
        assert sum(answer.status_code == 200 for answer in answers) == MOST_CALLS + MOST_BEATS
        assert ask("commit", commit).status_code == 200, "what was under way is over"


def test_however_much_services_ask_a_heartbeat_finds_a_connection_to_the_ledger(
    url: str, pool_url: str, orders: dict[str, LaunchOrder]
) -> None:
    path = "/service/cancel"
    body = calls.service_methods()["cancel"].encode_arguments({"job_id": "job-a", "reason": "a user asked"})
    signer, beat = ServiceSigner(CONTROL_SECRET), body_of("heartbeat", beat=a_beat(5))
    limits = httpx.Limits(max_connections=100)
    with httpx.Client(base_url=url, timeout=120, limits=limits) as client, ThreadPoolExecutor(60) as threads:

        def ask() -> httpx.Response:
            return client.post(path, content=body, headers=signer.headers("POST", path, body, time.time()))

        with nobody_can_change(pool_url, "job-a"):
            asked = [threads.submit(ask) for _ in range(60)]
            assert not wait(asked, timeout=1.0).done
            for _ in range(3):
                theirs = httpx.post(
                    f"{url}/trainer/heartbeat", content=beat, headers=headers(orders["job-b"].token), timeout=20
                )
                assert theirs.status_code == 200
        assert {one.result().status_code for one in asked} == {200}


def test_large_messages_are_read_one_after_the_other_and_heartbeats_come_between(
    url: str, orders: dict[str, LaunchOrder]
) -> None:
    order = orders["job-a"]
    large, beat = b" " * LARGE_BYTES + body_of("observe", observations=[]), body_of("heartbeat", beat=a_beat(5))
    with ThreadPoolExecutor(1) as threads:
        with ONE_LARGE:
            post = partial(httpx.post, headers=headers(order.token), timeout=60)
            asked = threads.submit(post, f"{url}/trainer/observe", content=large)
            assert post(f"{url}/trainer/heartbeat", content=beat).status_code == 200
            assert post(f"{url}/trainer/observe", content=large.strip()).status_code == 200, "a small one does not wait"
            assert not wait([asked], timeout=0.2).done
        assert asked.result().status_code == 200


def first(asked: list[Future[httpx.Response]], count: int) -> list[httpx.Response]:
    """Answers, once there are as many."""
    answered: set[Future[httpx.Response]] = set()
    while len(answered) < count:
        more, _ = wait(set(asked) - answered, return_when="FIRST_COMPLETED")
        answered |= more
    return [one.result() for one in answered]


def test_all_that_a_trainer_and_its_agent_ask_at_once_is_answered(
    url: str, pool_url: str, control: LedgerControl, orders: dict[str, LaunchOrder]
) -> None:
    order = orders["job-a"]
    control.trainer(order.token).commit(a_commit(order, 4))
    (checkpoint,) = control.checkpoints("job-a")
    bodies = {
        "heartbeat": body_of("heartbeat", beat=a_beat(5)),
        "observe": body_of("observe", observations=[an_observation(5, order)]),
        "commit": body_of("commit", commit=a_commit(order, 5)),
        "mark_bad": body_of("mark_bad", checkpoint_id=checkpoint.checkpoint_id, why="its bytes were changed"),
        "release_slots": body_of("release_slots", slots=[], epoch=order.epoch),
        "exited": body_of("exited", report=ExitReport(kind=ExitKind.INFRASTRUCTURE, error="SIGKILL")),
    }
    assert bodies.keys() == calls.trainer_methods().keys()

    def ask(name: str) -> int:
        token = order.agent_token if name in ("exited", "release_slots") else order.token
        return httpx.post(f"{url}/trainer/{name}", content=bodies[name], headers=headers(token), timeout=60).status_code

    with ThreadPoolExecutor(len(bodies)) as threads:
        with nobody_can_change(pool_url, "job-a"):
            asked = {name: threads.submit(ask, name) for name in bodies}
            done, _ = wait(asked.values(), timeout=1.0)
            assert not {one.result() for one in done} & {429}
        assert not {one.result() for one in asked.values()} & {429, 503}
