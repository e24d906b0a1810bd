"""What an S3 store says and leaves when credentials, bucket or server fail."""

from __future__ import annotations

import os
import random
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError

from elastic_core.errors import InfrastructureError
from elastic_core.state.stores import s3_store
from elastic_core.state.stores.store_urls import open_store
from tests.state.conftest import BUCKET, Server, free_port, start_rclone


def fresh(server: Server) -> str:
    return f"s3://{BUCKET}/{secrets.token_hex(4)}"


def test_a_wrong_secret_fails_at_once_and_says_so(rclone: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setattr(s3_store, "_ATTEMPTS", 1)
    store = open_store(fresh(rclone), endpoint=rclone.endpoint)
    for use in (
        lambda: store.put("a", b"x"),
        lambda: store.get("a"),
        lambda: list(store.list("")),
        lambda: store.size("a"),
    ):
        with pytest.raises(InfrastructureError, match=r"secret key|credentials"):
            use()


def test_an_unknown_access_key_fails_and_says_so(rclone: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(InfrastructureError, match=r"credentials|access key"):
        open_store(fresh(rclone), endpoint=rclone.endpoint).put("a", b"x")


def test_no_credentials_at_all_says_what_to_set(rclone: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(InfrastructureError, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        open_store(fresh(rclone), endpoint=rclone.endpoint).put("a", b"x")


@pytest.mark.parametrize("kind", ["rclone", "moto"])
def test_a_missing_bucket_is_told_by_every_call(kind: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(kind)
    store = open_store("s3://no-such-bucket/x", endpoint=server.endpoint)
    calls = (
        lambda: store.put("a", b"x"),
        lambda: store.put("a", iter([memoryview(bytes(40 << 20))])),
        lambda: store.get("a"),
        lambda: store.size("a"),
        lambda: list(store.list("")),
        lambda: store.delete("a"),
    )
    for call in calls:
        with pytest.raises(InfrastructureError, match=r"bucket|Bucket"):
            call()


def test_a_server_that_is_not_there_is_told_with_its_address() -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(InfrastructureError, match=endpoint):
        open_store(f"s3://{BUCKET}/x", endpoint=endpoint).get("a")


def test_a_server_that_dies_in_the_middle_of_a_put_leaves_nothing_visible(tmp_path: Path) -> None:
    server = start_rclone(tmp_path / "rclone")
    store = open_store(f"s3://{BUCKET}/job", endpoint=server.endpoint)
    store.put("before", b"x")

    def dying() -> Iterator[memoryview]:
        for i in range(5):
            yield memoryview(os.urandom(1 << 20) * 33)
            if i == 3:
                server.stop()

    with pytest.raises(InfrastructureError, match=r"Cannot write part|Cannot complete"):
        store.put("large", dying())
    revived = start_rclone(tmp_path / "rclone", int(server.endpoint.rpartition(":")[2]))
    try:
        assert list(store.list("")) == ["before"]
        assert store.size("large") is None
    finally:
        revived.stop()


def test_a_server_that_comes_back_is_reached_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempts meet a refused connection; the server starts meanwhile."""
    monkeypatch.setattr(s3_store, "_ATTEMPTS", 12)
    server = start_rclone(tmp_path / "rclone")
    store = open_store(f"s3://{BUCKET}/job", endpoint=server.endpoint)
    server.stop()
    revived: list[Server] = []

    def revive() -> None:
        revived.append(start_rclone(tmp_path / "rclone", int(server.endpoint.rpartition(":")[2])))

    timer = threading.Timer(0.5, revive)
    timer.start()
    try:
        store.put("a", b"x")
        assert store.get("a") == b"x"
    finally:
        timer.join()
        revived[0].stop()


def test_uploads_that_never_completed_are_seen_and_deleted(moto: Server) -> None:
    store = open_store(fresh(moto), endpoint=moto.endpoint)
    assert isinstance(store, s3_store.S3Store)
    target = store._key("job/large")
    store._s3.create_multipart_upload(Bucket=BUCKET, Key=target)
    (left,) = store.unfinished("job")
    assert left.key == "job/large"
    assert list(store.list("")) == []
    store.delete("job")
    assert list(store.unfinished("")) == []


def test_a_completed_upload_whose_answer_was_lost_is_a_success(rclone: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(fresh(rclone), endpoint=rclone.endpoint)
    assert isinstance(store, s3_store.S3Store)
    complete = store._s3.complete_multipart_upload
    calls = []

    def complete_and_lose_the_answer(**arguments: object) -> object:
        calls.append(1)
        answer = complete(**arguments)
        if len(calls) == 1:
            raise ConnectionResetError("the answer was lost")
        return answer

    monkeypatch.setattr(store._s3, "complete_multipart_upload", complete_and_lose_the_answer)
    content = os.urandom(33 << 20)
    store.put("large", content)
    assert len(calls) == 2
    assert store.get("large") == content


def test_once_a_part_has_failed_the_source_is_not_read_to_its_end(
    moto: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(fresh(moto), endpoint=moto.endpoint)
    assert isinstance(store, s3_store.S3Store)
    refusal = ClientError(
        {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "UploadPart"
    )  # type: ignore[typeddict-item]
    monkeypatch.setattr(store._s3, "upload_part", Mock(side_effect=refusal))
    drawn = []

    def source() -> Iterator[memoryview]:
        for i in range(24):
            drawn.append(i)
            yield memoryview(bytes(16 << 20))

    with pytest.raises(InfrastructureError, match="Cannot write part 1 of large"):
        store.put("large", source())
    assert len(drawn) < 16
    assert list(store.unfinished("")) == []


def test_trying_again_draws_nothing_from_the_global_random_generator(
    rclone: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is part of a training job's state."""
    store = open_store(fresh(rclone), endpoint=rclone.endpoint)
    assert isinstance(store, s3_store.S3Store)
    upload_part = store._s3.upload_part
    calls = []

    def failing_at_first(**arguments: object) -> object:
        calls.append(arguments["PartNumber"])
        if len(calls) == 1:
            arguments["Body"].read(10)  # type: ignore[attr-defined]
            raise ConnectionResetError("the network hiccups")
        return upload_part(**arguments)

    monkeypatch.setattr(store._s3, "upload_part", failing_at_first)
    before = random.getstate()
    content = os.urandom(33 << 20)
    store.put("large", iter([memoryview(content)]))
    assert len(calls) == 3
    assert random.getstate() == before
    assert store.get("large") == content
