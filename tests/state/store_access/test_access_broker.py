"""What the access broker signs for whom: its grant's folders and nothing else, over a server that checks signatures."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from elastic_core.domain import Layout, to_json
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.messages import EXIT, AccessBrokerProcess
from elastic_core.host.rundir import RunDir
from elastic_core.launch.folders import GroupFolders
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from elastic_core.protocol.records import CheckpointRecord, RestorePoint
from elastic_core.settings import Settings
from elastic_core.state.memory_tier import handshakes
from elastic_core.state.store_access import access_broker, access_brokers
from elastic_core.state.store_access.brokered_store import AccessClient, open_for_job
from elastic_core.state.store_access.store_grants import StoreAccess, StoreGrant, grant_key
from elastic_core.state.stores.s3_signing import Unsigned
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store
from tests.launch.builders import order
from tests.state.conftest import BUCKET, Server, broker

GRANT = StoreGrant(who="job mine", write=("mine",), read=("parent", "other/lineage-0/step-1"))
URL = f"s3://{BUCKET}/root"
LEAF = "lineage-0/step-0000000007-epoch-3-abc"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
ODD_REQUEST = json.dumps(asdict(Unsigned("GET", BUCKET, "x", {}, {}, EMPTY))).encode()


@pytest.fixture
def whole(rclone: Server) -> CheckpointStore:
    """The store as the services see it, with jobs of before in it."""
    store = open_store(URL, endpoint=rclone.endpoint)
    store.delete("mine")
    for key in ("mine/a", "minex/a", "parent/a", "other/lineage-0/step-1/a", "other/lineage-0/step-10/a", "other/a"):
        store.put(key, key.encode())
    return store


@pytest.fixture
def access_by(rclone: Server, tmp_path: Path) -> Iterator[Callable[[StoreGrant], StoreAccess]]:
    with broker(rclone, tmp_path, URL) as found:
        yield found


@pytest.fixture
def access(
    access_by: Callable[[StoreGrant], StoreAccess],
    whole: CheckpointStore,
    monkeypatch: pytest.MonkeyPatch,
) -> StoreAccess:
    """Of a job whose processes have no credential."""
    found = access_by(GRANT)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    return found


@pytest.fixture
def store(access: StoreAccess, rclone: Server) -> CheckpointStore:
    return open_for_job(URL, rclone.endpoint, access)


def test_a_job_does_in_its_own_folder_what_it_likes(whole: CheckpointStore, store: CheckpointStore) -> None:
    store.put("mine/b", b"content")
    assert store.get("mine/b") == whole.get("mine/b") == b"content"
    assert store.size("mine/b") == 7
    assert store.list("mine") == ["mine/a", "mine/b"]  # not minex/a
    store.delete("mine/b")
    assert store.size("mine/b") is None


@pytest.mark.parametrize("key", ["parent/a", "other/lineage-0/step-1/a"])
def test_what_it_starts_from_it_reads_and_does_not_change(
    whole: CheckpointStore, store: CheckpointStore, key: str
) -> None:
    assert store.get(key) == key.encode()
    assert store.size(key) == len(key)
    for change in (lambda: store.put(key, b"x"), lambda: store.put(key, [memoryview(bytes(1 << 20))] * 40)):
        with pytest.raises(
            UserError, match=f"job mine may not P[UOST]+ 'root/{key}'.* write mine/, and .* read parent/"
        ):
            change()
    with pytest.raises(UserError, match="job mine may not DELETE"):
        store.delete(key)
    assert whole.get(key) == key.encode()


@pytest.mark.parametrize("key", ["other/a", "minex/a", "other/lineage-0/step-10/a"])
def test_everything_else_is_refused_with_words(whole: CheckpointStore, store: CheckpointStore, key: str) -> None:
    folder = key.rpartition("/")[0]
    for request in (
        lambda: store.get(key),
        lambda: store.read_into(key, 0, [memoryview(bytearray(1))]),
        lambda: store.size(key),
        lambda: store.put(key, b"x"),
        lambda: list(store.list(folder)),
        lambda: list(store.list("")),
        lambda: list(store.unfinished(folder)),
        lambda: store.delete(folder),
    ):
        with pytest.raises(UserError, match=f"job mine may not .* in {URL} it may write mine/"):
            request()
    assert whole.get(key) == key.encode()


HOSTILE: list[dict[str, Any]] = [
    {"method": "GET", "key": "root/mine/../other/a"},
    {"method": "GET", "key": "root/mine//a"},
    {"method": "GET", "key": "root/mine/./a"},
    {"method": "GET", "key": "root/mine"},
    {"method": "GET", "bucket": "elsewhere", "key": "root/mine/a"},
    {"method": "GET", "bucket": f"{BUCKET}/root/other", "key": "a"},
    {"method": "GET", "key": "root/mine/a", "query": {"acl": ""}},
    {"method": "GET", "key": "root/mine/a", "query": {"versionId": "1"}},
    {"method": "PUT", "key": "root/mine/a", "query": {"acl": ""}},
    {"method": "PUT", "key": "root/mine/a", "headers": {"x-amz-copy-source": f"/{BUCKET}/root/other/a"}},
    {"method": "PUT", "key": "root/mine/a", "headers": {"x-amz-acl": "public-read"}},
    {"method": "PUT", "key": "root/mine/a", "headers": {"content-type": "a\nx-amz-copy-source:b"}},
    {"method": "PUT", "key": "root/mine/a", "payload": "UNSIGNED-PAYLOAD\nx"},
    {"method": "PUT", "key": "root/mine/a", "payload": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"},
    {"method": "POST", "key": "root/mine/a", "query": {"select": "", "select-type": "2"}},
    {"method": "POST", "query": {"delete": ""}},
    {"method": "PUT", "query": {}},
    {"method": "DELETE"},
    {"method": "PUT", "query": {"policy": ""}},
    {"method": "GET"},
    {"method": "GET", "query": {"list-type": "2"}},
    {"method": "GET", "query": {"list-type": "2", "prefix": "root/min"}},
    {"method": "GET", "query": {"list-type": "2", "prefix": "root/mine/", "start-after": "a"}},
    {"method": "GET", "query": {"versions": "", "prefix": "root/mine/"}},
    {"method": "GET", "key": 7},
    {"method": "GET", "key": "root/mine/a", "query": {"acl": None}},
]


@pytest.mark.parametrize("fields", HOSTILE, ids=lambda fields: json.dumps(fields)[:80])
def test_requests_that_no_store_of_ours_makes_are_not_signed(access: StoreAccess, fields: dict[str, Any]) -> None:
    plain = {"bucket": BUCKET, "key": "", "query": {}, "headers": {}, "payload": EMPTY, **fields}
    assert asked(access, plain) in ("refused", "cannot sign")


def asked(access: StoreAccess, fields: dict[str, Any]) -> str:
    try:
        return ", ".join(AccessClient(access)._ask(json.dumps(fields).encode()))
    except InfrastructureError as error:
        return "cannot sign" if "the access broker cannot sign" in str(error) else str(error)


@pytest.mark.parametrize("prefix", ["root/mine", "root/mine/", "root/parent"])
def test_the_list_of_a_folder_is_signed_for_what_is_below_it_only(access: StoreAccess, prefix: str) -> None:
    request = Unsigned("GET", BUCKET, "", {"list-type": "2", "prefix": prefix}, payload=EMPTY)
    answer = AccessClient(access)._ask(json.dumps(asdict(request)).encode())
    assert answer["url"].endswith(f"&prefix={prefix.rstrip('/').replace('/', '%2F')}%2F")  # not root/minex/


def test_what_is_signed_is_one_request_and_not_another(
    access: StoreAccess, whole: CheckpointStore, rclone: Server
) -> None:
    request = Unsigned("GET", BUCKET, "root/mine/a", payload=EMPTY)
    answer = AccessClient(access)._ask(json.dumps(asdict(request)).encode())

    def send(url: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(url, headers=answer["headers"], method=method)
        with urllib.request.urlopen(request) as found:
            return bytes(found.read())

    assert send(answer["url"]) == b"mine/a"
    for url, method in ((answer["url"].replace("mine", "other"), "GET"), (answer["url"], "DELETE")):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            send(url, method)


@pytest.mark.parametrize("part", ["grant", "key"])
def test_a_grant_that_the_installation_did_not_make_is_heard_by_nobody(
    access: StoreAccess, rclone: Server, part: str
) -> None:
    wider = replace(GRANT, write=("other",)).text()
    forged = replace(access, grant=wider) if part == "grant" else replace(access, key=grant_key(b"x", access.grant))
    with pytest.raises(ConnectionError, match="the access broker, which signs requests, does not answer"):
        AccessClient(forged)._ask(b"{}")


def say_slowly(connection: socket.socket) -> None:
    """The length of a grant and forty bytes of it, in two seconds."""
    connection.sendall((1000).to_bytes(2, "little"))
    for _ in range(40):
        connection.sendall(b"j")
        time.sleep(0.05)


def a_stranger(access: StoreAccess) -> socket.socket:
    """Who has shown no key."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("\0" + access.socket)
    return connection


def test_who_shows_its_key_byte_by_byte_gets_no_more_time(access: StoreAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS", 0.5)
    with a_stranger(access) as slow, pytest.raises(ConnectionError):
        say_slowly(slow)


def test_so_many_may_show_their_keys_at_once_and_no_more(
    rclone: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "MOST_HANDSHAKES", 1)
    with (
        broker(rclone, tmp_path, URL) as access_by,
        a_stranger(access_by(GRANT)),
        pytest.raises(ConnectionError, match="does not answer"),
    ):
        AccessClient(access_by(GRANT))._ask(b"{}")


def test_a_grant_has_so_many_connections_and_other_jobs_are_served_meanwhile(
    rclone: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_broker, "MOST_CONNECTIONS", 2)
    with broker(rclone, tmp_path, URL) as access_by:
        mine, same, third = (AccessClient(access_by(GRANT)) for _ in range(3))
        for client in (mine, same):
            assert "refused" in client._ask(ODD_REQUEST)
        with pytest.raises(ConnectionError, match="does not answer"):
            third._ask(b"{}")
        other = AccessClient(access_by(replace(GRANT, who="job other")))
        assert "refused" in other._ask(ODD_REQUEST)
        for client in (mine, other):
            client._drop_idle()
        wait_until(lambda: "refused" in answered(third))


def answered(client: AccessClient) -> dict[str, Any]:
    with suppress(ConnectionError):
        return client._ask(ODD_REQUEST)
    return {}


def wait_until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_processes_of_other_unix_users_do_not_even_hear_a_nonce(access: StoreAccess) -> None:
    code = (
        "import os, socket, sys; os.setuid(65534)\n"
        "connection = socket.socket(socket.AF_UNIX)\n"
        "connection.connect(chr(0) + sys.argv[1])\n"
        "try:\n    connection.sendall(bytes([1, 0, 1]))\n    sys.exit(len(connection.recv(100)))\n"
        "except ConnectionError:\n    sys.exit(0)\n"
    )
    command = [sys.executable, "-c", code, access.socket]
    assert subprocess.run(command, check=False, timeout=30).returncode == 0


@pytest.fixture
def of_ended_group(
    access_by: Callable[[StoreGrant], StoreAccess], whole: CheckpointStore, rclone: Server, tmp_path: Path
) -> CheckpointStore:
    """What a process group had its store by, which wrote in it and has ended."""
    run_dir = RunDir.of(tmp_path, 7)
    run_dir.create()
    store = open_for_job(URL, rclone.endpoint, access_by(replace(GRANT, origin_epoch=7)))
    store.put("mine/c", b"x")
    run_dir.write_json(EXIT, to_json(ExitReport(kind=ExitKind.BOUNDARY)))
    return store


def test_a_grant_ends_with_its_process_group(of_ended_group: CheckpointStore) -> None:
    with pytest.raises(UserError, match="job mine may do nothing in the store any more: its process group has ended"):
        of_ended_group.get("mine/c")


def test_a_grant_whose_run_dir_is_removed_does_not_hold_again(of_ended_group: CheckpointStore, tmp_path: Path) -> None:
    assert GroupFolders(Settings(home=tmp_path)).remove_ended(time.time() + 1) == 1
    with pytest.raises(UserError, match="its process group has ended"):
        of_ended_group.get("mine/c")


def test_an_order_may_write_its_own_job_and_read_what_it_starts_from() -> None:
    start = "parent/lineage-2/step-0000000007-epoch-3-abc"
    assert access_brokers.grant_of(order()) == StoreGrant(who="job job", write=("job",), origin_epoch=7)
    assert access_brokers.grant_of(replace(order(), warm_start=start)).read == (start,)


@pytest.mark.parametrize(
    "start", ["", "/", "a/../b", "parent", "exported/model", f"a/parent/{LEAF}", f"../{LEAF}", f".hidden/{LEAF}"]
)
def test_what_is_no_checkpoint_of_a_job_is_granted_to_none(start: str) -> None:
    assert access_brokers.grant_of(replace(order(), warm_start=start)).read == ()


CHECKPOINT = f"code/{LEAF}"


@pytest.mark.parametrize(
    ("start", "read"),
    [
        ("code", ()),
        ("code/0123.zip", ()),
        ("code/0123.zip/lineage-0/step-0000000007-epoch-3-abc", ()),
        (CHECKPOINT, (CHECKPOINT,)),  # of a job that had the name before it was reserved
    ],
)
def test_what_is_of_all_jobs_is_read_by_none_of_them(start: str, read: tuple[str, ...]) -> None:
    assert access_brokers.grant_of(replace(order(), warm_start=start)).read == read


def test_a_fork_may_read_the_checkpoint_that_it_starts_from_and_nothing_else_of_its_parent() -> None:
    start = "parent/lineage-0/step-0000000007-epoch-3-abc"
    candidates = (a_record("job", "job/lineage-0/step-0000000009-epoch-7-def"), a_record("parent", start))
    grant = access_brokers.grant_of(replace(order(), restore=RestorePoint(candidates=candidates)))
    assert (grant.write, grant.read) == (("job",), (start,))

    def refusal(method: str, key: str) -> str | None:
        return grant.refusal(Unsigned(method, "bucket", key, {}, {}), "bucket", "base")

    assert refusal("GET", f"base/{start}/manifest.json") is None
    for method, key in (
        ("PUT", f"base/{start}/manifest.json"),
        ("GET", f"base/{start}-other/manifest.json"),
        ("GET", "base/parent/lineage-0/step-0000000008-epoch-3-abc/manifest.json"),
        ("GET", "base/parent/audit/epoch-0.npy"),
    ):
        assert "job job may not" in (refusal(method, key) or ""), key


def a_record(job_id: str, uri: str) -> CheckpointRecord:
    return CheckpointRecord(
        checkpoint_id=1, job_id=job_id, lineage=0, step=7, samples=70, epoch=3, segment_id="x", uri=uri,
        manifest_sha256="0" * 64, size_bytes=1, layout=Layout(), metrics={}, committed_at=0.0, final=False,
    )  # fmt: skip


@pytest.mark.parametrize("folder", ["", "a/", "../a", "."])
def test_no_grant_is_for_the_whole_store(folder: str) -> None:
    with pytest.raises(UserError, match="is not a key of a checkpoint store"):
        StoreGrant(who="job", read=(folder,))


@pytest.fixture
def installed(tmp_path: Path, rclone: Server) -> Iterator[Settings]:
    settings = Settings(home=tmp_path, project=Path(__file__).parents[3], store=URL, s3_endpoint=rclone.endpoint)
    yield settings
    access_brokers.stop(settings)


def test_a_broker_that_was_killed_is_started_again_and_its_clients_go_on(
    installed: Settings, whole: CheckpointStore, rclone: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = RunDir.of(installed.home, 7)
    run_dir.create()
    granted = replace(order(), job_id="mine")
    access_brokers.prepare(installed, granted, run_dir)
    store = open_for_job(URL, rclone.endpoint, run_dir.require(StoreAccess))
    assert store.get("mine/a") == b"mine/a"
    first = RunDir(access_brokers.folder_of(installed)).require(AccessBrokerProcess)
    environ = Path(f"/proc/{first.pid}/environ").read_text()
    assert "AWS_" not in environ
    first.process.send(9)
    monkeypatch.setattr("elastic_core.state.stores.s3_store._ATTEMPTS", 2)
    with pytest.raises(InfrastructureError, match=r"Cannot read mine/a .*the access broker.* does not answer"):
        store.get("mine/a")
    access_brokers.start(installed)
    assert store.get("mine/a") == b"mine/a"
    second = RunDir(access_brokers.folder_of(installed)).require(AccessBrokerProcess)
    assert second.pid != first.pid
    access_brokers.start(installed)
    assert RunDir(access_brokers.folder_of(installed)).require(AccessBrokerProcess) == second
    assert (installed.secret_file("store-access").stat().st_mode & 0o777) == 0o600


def test_a_broker_that_cannot_start_says_so(tmp_path: Path) -> None:
    settings = Settings(
        home=tmp_path, project=Path(__file__).parents[3], store="s3://", s3_endpoint="http://127.0.0.1:9"
    )
    with pytest.raises(InfrastructureError, match=r"jobs have no access to s3://: .*access-broker\.log says why"):
        access_brokers.start(settings)


def test_with_a_folder_as_store_there_is_no_broker(tmp_path: Path) -> None:
    run_dir = RunDir.of(tmp_path, 7)
    run_dir.create()
    access_brokers.prepare(Settings(home=tmp_path), order(), run_dir)
    with access_brokers.serving(Settings(home=tmp_path), GRANT) as access:
        assert access is None
    assert run_dir.read(StoreAccess) is None
    assert not (tmp_path / "store-access").exists()


def test_access_for_a_child_ends_with_it(installed: Settings, whole: CheckpointStore, rclone: Server) -> None:
    with access_brokers.serving(installed, GRANT) as access:
        assert access is not None
        store = open_for_job(URL, rclone.endpoint, access)
        assert store.get("mine/a") == b"mine/a"
    with pytest.raises(ConnectionError, match="does not answer"):
        AccessClient(access)._ask(b"{}")
